"""What is installed, what is used, and what could be better: for people, and for their bug reports."""

from __future__ import annotations

import platform
import warnings
from pathlib import Path

from bdpi.runs.errors import named, one_line
from bdpi.runs.versions import origin


def findings() -> list[tuple[str, str]]:
    """Names and values, in the order to show them. Looks at everything, and raises nothing."""
    return [
        *origin().items(),
        ("platform", platform.platform()),
        ("installed in", str(Path(__file__).parent.parent)),
        *_native_learner(),
        *_cuda(),
    ]


def _native_learner() -> list[tuple[str, str]]:
    try:
        from bdpi.learner import native

        info = native.info()
    except Exception as error:  # bdpi doctor always answers
        return [("native learner", f"cannot be asked: {named(error)}")]
    supported = ", ".join(info["supported"]) or "none"
    threads = ("threads", str(info["threads"]))
    if info["available"]:
        return [
            ("native learner", "available: MLPs on the CPU learn with it"),
            ("instruction set", f"{info['instruction_set']} (this processor can: {supported})"),
            threads,
        ]
    reason = one_line(info["reason"] or "no reason is known").rstrip(".")
    return [("native learner", f"not available, the slower torch learner is used: {reason}"), threads]


def _cuda() -> list[tuple[str, str]]:
    try:
        import torch

        from bdpi.learner import fused, nvrtc, pictures

        lacks = f"not available: they, and populations that are trained together, need {nvrtc.REMEDY}"
        if not torch.cuda.is_available():
            why = "" if torch.version.cuda else " (this PyTorch was built without it)"
            return [
                ("CUDA", f"not available{why}"),
                ("fused kernels", lacks),
                ("kernels for pictures", f"not available: {pictures.REMEDY}"),
                ("CUDA graphs", "not used: they need a GPU"),
            ]
        can = "available: populations are trained together" if fused.is_available() else lacks
        name = ("CUDA", f"{torch.version.cuda}: {torch.cuda.get_device_name()}")
        seen = "available: convolutional networks of the usual shape learn with them, with precision=bfloat16"
        if lacking := pictures.why_not(torch.device("cuda")):
            seen = f"not available, PyTorch is used: {lacking}"
    except Exception as error:
        return [("CUDA", f"PyTorch cannot be asked: {named(error)}")]
    return [
        name,
        ("fused kernels", can),
        ("kernels for pictures", seen),
        ("CUDA graphs", _graphs()),
    ]


def _graphs() -> str:
    try:
        reason = why_not_recorded()
    except Exception as error:
        return f"cannot be tried: {named(error)}"
    if reason:
        return f"not used, learning epochs run step by step, which is slower: {one_line(reason)}"
    return "used: a learning epoch of the torch learner is recorded once, and then started by one call"


def why_not_recorded(device: str = "cuda") -> str:
    """Try it, with a small convolutional network: why epochs are not recorded as CUDA graphs; empty if they are."""
    import numpy as np
    from torch import nn

    from bdpi.learner import Hyperparameters, LearnerState, Transitions
    from bdpi.learner.functional import flatten_parameters
    from bdpi.learner.torch import TorchLearner

    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 3 * 3, 2))
    parameters = flatten_parameters(network)
    learner = TorchLearner(network, network, LearnerState.fresh(parameters, np.tile(parameters, (2, 2, 1))), device)
    images, numbers = np.zeros((4, 1, 5, 5), np.float32), np.zeros(4, np.float32)
    transitions = Transitions(images, np.zeros(4, np.int64), numbers, numbers, images)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reason is what is returned
        for _ in range(3):  # as it is, recorded, replayed
            learner.epoch(transitions, np.zeros((2, 4), np.int64), np.arange(2), Hyperparameters(fit_steps=1))
    return f"{device} has no graphs" if learner.replay is None else learner.replay.reason
