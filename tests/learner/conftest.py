import sys
from pathlib import Path

import pytest

from bdpi.learner import fused, nvrtc

sys.path.insert(0, str(Path(__file__).parent))
from emulator import Emulator

_EMULATOR: list[Emulator] = []


@pytest.fixture(scope="module")
def fused_kernels(tmp_path_factory):
    """Something to run the fused kernels on: a GPU, or an emulation of one."""
    if nvrtc.is_available():
        yield
        return
    if not _EMULATOR:
        _EMULATOR.append(Emulator(tmp_path_factory.mktemp("kernels")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "kernels", _EMULATOR[0])
        yield
