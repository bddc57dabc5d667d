"""Threads that record CUDA graphs, without a GPU: test_torch.py has what graphs compute on one."""

import contextlib
import threading
import time

import pytest
import torch

from bdpi.learner.graphs import Replay
from bdpi.learner.streams import LAUNCHING


class Device:
    """Stands in for torch.cuda, as far as recording goes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.modes, self.freed = modes, freed = [], []

        class Recording(contextlib.nullcontext):
            def __init__(self, graph: object, stream: object, capture_error_mode: str = "global") -> None:
                super().__init__()
                assert isinstance(stream, Stream)
                modes.append(capture_error_mode)

        class Graph:
            def replay(self) -> None:
                pass

            def reset(self) -> None:
                assert LAUNCHING.locked()
                freed.append(self)

        class Stream:
            def wait_stream(self, other: object) -> None:
                pass

        for name, value in {
            "graph": Recording,
            "CUDAGraph": Graph,
            "Stream": Stream,
            "current_stream": Stream,
            "stream": contextlib.nullcontext,
            "synchronize": lambda: None,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)


def test_while_a_graph_is_recorded_nobody_else_records_or_runs_step_by_step(monkeypatch):
    busy, crowds, modes = [], [], Device(monkeypatch).modes

    def epoch(tensors: list[torch.Tensor]) -> torch.Tensor:
        busy.append(threading.get_ident())
        time.sleep(0.01)
        crowds.append(len(busy))
        busy.remove(threading.get_ident())
        return tensors[0]

    def learn() -> None:
        replay = Replay(epoch)
        for key in range(3):
            for _ in range(3):  # as it is, recorded, replayed
                replay([torch.zeros(1)], key=key)
        assert replay.reason == ""

    threads = [threading.Thread(target=learn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert crowds == [1] * 24
    assert modes == ["thread_local"] * 12  # what is forbidden while recording is so in that thread only


def recorded() -> Replay:
    replay = Replay(lambda tensors: tensors[0])
    for _ in range(2):
        replay([torch.zeros(1)], key=0)
    return replay


def test_a_graph_is_freed_at_once_while_nobody_records(monkeypatch):
    device = Device(monkeypatch)
    replay = recorded()
    assert device.freed == []
    del replay
    assert len(device.freed) == 1


def test_a_graph_that_cannot_be_freed_while_another_is_recorded_is_freed_before_the_next(monkeypatch):
    device = Device(monkeypatch)
    replay = recorded()
    with LAUNCHING:
        del replay
        assert device.freed == []
    following = recorded()
    assert len(device.freed) == 1
    del following
