"""Acting, predicting, observing and saving while learning, for GCC's thread sanitizer to watch.

    make sanitize

The compiled part is built with ``-fsanitize=thread``, in a folder of its own, and is the argument of this program. The
sanitizer reports each data race as it happens, and makes the program fail in the end.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

STEPS, SAVES = 600, 6


def use_module(path: Path) -> None:
    """Have the package take its compiled part from a file."""
    if not hasattr(ctypes.CDLL(None), "__tsan_init"):
        raise SystemExit("the thread sanitizer is not there: run make sanitize, which preloads it")
    if b"__tsan_read" not in path.read_bytes():
        raise SystemExit(f"{path} was not built with -fsanitize=thread")
    spec = importlib.util.spec_from_file_location("bdpi._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bdpi._native"] = module
    spec.loader.exec_module(module)


def learn_while_acting(folder: Path) -> Any:
    import bdpi

    loop = bdpi.envs.ControlLoop(spaces.Box(-1, 1, (8,), np.float32), spaces.Discrete(4))
    small: dict[str, Any] = {"n_critics": 4, "batch_size": 64, "policy_kwargs": {"net_arch": [32]}}
    agent = bdpi.BDPI("MlpPolicy", loop, seed=0, n_threads=2, **small)
    generator = np.random.default_rng(0)
    agent.start_learning()
    for step in range(1, STEPS + 1):
        seen, following = generator.uniform(-1, 1, (2, 8)).astype(np.float32)
        action = agent.act(seen)
        agent.predict(seen)
        agent.observe(seen, action, float(generator.normal()), following, terminated=False, truncated=step % 50 == 0)
        if step % (STEPS // SAVES) == 0:
            agent.save(folder / "agent.zip", include_buffer=True)
    agent.stop_learning(finish=True)
    return agent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", type=Path, help="_native*.so, built with -fsanitize=thread")
    use_module(parser.parse_args().module)
    import bdpi

    with tempfile.TemporaryDirectory() as folder:
        agent = learn_while_acting(Path(folder))
    print(f"bdpi {bdpi.__version__}, Python {platform.python_version()}, NumPy {np.__version__}")
    print(
        f"{STEPS} steps of acting, predicting and observing, {SAVES} times saved, while {agent._n_updates} epochs were "
        f"learned ({agent.learner_name} learner, two threads)",
        flush=True,
    )


if __name__ == "__main__":
    main()
