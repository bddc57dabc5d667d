"""Two writers of one file: threads of a process, and processes."""

import subprocess
import sys
import threading
import time
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


def test_threads_write_a_file_one_after_the_other(tmp_path: Path) -> None:
    """However they spell its path: there is never more than one partial file, and nothing waits for another file."""
    (tmp_path / "folder").mkdir()
    paths = [tmp_path / "lamp.zip", tmp_path / "folder" / ".." / "lamp.zip"]
    began, release, others = threading.Event(), threading.Event(), []

    def write_slowly(file: Any) -> None:
        began.set()
        assert release.wait(120)
        file.write(b"first")

    def write_too(file: Any) -> None:
        others.append(release.is_set())
        file.write(b"second")

    threads = [
        threading.Thread(target=write_atomically, args=(path, write))
        for path, write in zip(paths, (write_slowly, write_too), strict=True)
    ]
    threads[0].start()
    assert began.wait(120)
    threads[1].start()
    write_atomically(tmp_path / "other.zip", b"of another file")
    threads[1].join(0.2)
    assert len(list(tmp_path.glob(".lamp.zip.*.partial"))) == 1
    release.set()
    for thread in threads:
        thread.join()
    assert others == [True]
    assert paths[0].read_bytes() == b"second"


SAVING = """
import sys, pathlib
from bdpi.storage.atomic import write_atomically
path, content, n = pathlib.Path(sys.argv[1]), bytes([int(sys.argv[2])]) * 20_000, int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(n):
    write_atomically(path, content)
"""


@pytest.mark.parametrize("n", [600, pytest.param(10_000, marks=pytest.mark.full)])
def test_two_processes_that_save_a_file_while_a_third_reads_it(tmp_path: Path, n: int) -> None:
    """This one is the third. ``n``: savings and reads in all, at least."""
    path, reads = tmp_path / "lamp.zip", 0
    contents = [bytes([number]) * 20_000 for number in range(2)]
    write_atomically(path, contents[0])
    savers = [
        subprocess.Popen(
            [sys.executable, "-c", SAVING, path, str(number), str(n // 3)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for saver in savers:
        assert saver.stdout is not None
        assert saver.stdout.readline() == "ready\n"
    for saver in savers:  # both at once, not one while the other is still being imported
        assert saver.stdin is not None
        saver.stdin.write("\n")
        saver.stdin.flush()
    while reads < n // 3 or any(saver.poll() is None for saver in savers):
        assert path.read_bytes() in contents
        reads += 1
        time.sleep(1e-4)
    assert [saver.communicate()[1] for saver in savers] == ["", ""]
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
