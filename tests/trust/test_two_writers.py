"""Two writers of one file, in one process."""

import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from bdpi import BDPI
from bdpi.storage.atomic import write_atomically
from small import Walk, quick_agent


@pytest.mark.parametrize("n", [300, pytest.param(10_000, marks=pytest.mark.full)])
def test_savings_at_once_never_damage_a_file(tmp_path: Path, n: int) -> None:
    path, errors = tmp_path / "lamp.zip", []
    contents = [bytes([number]) * 20_000 for number in range(2)]
    write_atomically(path, contents[0])

    def work(task: Any) -> None:
        try:
            for _ in range(n // 4):
                task()
        except Exception as error:
            errors.append(error)

    def read() -> None:
        assert path.read_bytes() in contents

    tasks = [lambda content=content: write_atomically(path, content) for content in contents] + [read, read]
    threads = [threading.Thread(target=work, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [file.name for file in tmp_path.iterdir()] == ["lamp.zip"]


def test_autosave_in_the_background_and_save_in_the_loop(tmp_path: Path) -> None:
    """The arrangement of docs/robots.md."""
    path = tmp_path / "lamp.zip"
    agent = quick_agent(Walk(), autosave=path, autosave_minutes=1e-9)
    agent.save(path)
    agent.start_learning()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        observation = agent.observation_space.sample()
        for _ in range(40):
            action = agent.act(observation)
            agent.observe(observation, action, 1.0, observation, False, False)
            agent.save(path)
            BDPI.load(path)
    agent.stop_learning()
