import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Two test processes share the cores; learners and PyTorch taking all of them would only make each other wait.
os.environ.setdefault("BDPI_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
if shutil.which("nvidia-smi") is None:  # no GPU: Triton's kernels run in its interpreter, which has to be known early
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples each time, however slow the machine is.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a new one. ``odd_worlds`` is found in spite of that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "runs"))
    return tmp_path
