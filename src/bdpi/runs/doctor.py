"""What is installed, what is used, and what could be better: for people, and for their bug reports."""

from __future__ import annotations

import platform
from pathlib import Path

from bdpi.runs.errors import named, one_line
from bdpi.runs.versions import versions


def findings() -> list[tuple[str, str]]:
    """Names and values, in the order to show them. Looks at everything, and raises nothing."""
    return [
        *versions().items(),
        ("platform", platform.platform()),
        ("installed in", str(Path(__file__).parent.parent)),
        *_native_learner(),
        *_cuda(),
    ]


def _native_learner() -> list[tuple[str, str]]:
    try:
        from bdpi.learner import native

        info = native.info()
    except Exception as error:  # a doctor that falls ill helps nobody
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

        if not torch.cuda.is_available():
            return [("CUDA", "not available" + ("" if torch.version.cuda else " (this PyTorch was built without it)"))]
        from bdpi.learner import fused, nvrtc

        can = "available" if fused.is_available() else f"not available: they need {nvrtc.REMEDY}"
        return [("CUDA", f"{torch.version.cuda}: {torch.cuda.get_device_name()}"), ("fused kernels", can)]
    except Exception as error:
        return [("CUDA", f"PyTorch cannot be asked: {named(error)}")]
