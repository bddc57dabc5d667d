"""Monitor's file, the moving average, the summary."""

from pathlib import Path

import pytest

from bdpi.runs.episodes import (
    Episode,
    Episodes,
    append_to_monitor,
    moving_average,
    read_monitor,
    summarize,
    trim_monitor,
)
from bdpi.runs.errors import RunError

MONITOR = '#{"t_start": 1.5, "env_id": "CartPole-v1"}\nr,l,t\n1.5,10,0.5\n-2.0,20,1.0\n3.0,30,1.5\n'


def test_the_moving_average_is_the_papers() -> None:
    assert moving_average([1.0, 0.0, 2.0]) == pytest.approx([1.0, 0.85, 0.85 * 0.85 + 0.15 * 2.0])
    assert moving_average([]) == []


def test_monitor_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "monitor.csv"
    path.write_text(MONITOR)
    episodes = read_monitor(path)
    assert episodes.returns == [1.5, -2.0, 3.0]
    assert episodes.lengths == [10, 20, 30]
    assert episodes.seconds == [0.5, 1.0, 1.5]
    assert episodes.averages == moving_average(episodes.returns)


def test_a_row_cut_off_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "monitor.csv"
    path.write_text(MONITOR + "17.0,4")
    assert len(read_monitor(path)) == 3
    trim_monitor(path, 3)
    assert path.read_text() == MONITOR
    trim_monitor(path, 1)
    assert read_monitor(path).returns == [1.5]


def test_appended_episodes_make_a_file_as_monitor_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "test.csv"
    for episode in (Episode(1.5, 10, 0.5), Episode(-2.0, 20, 1.0), Episode(3.0, 30, 1.5)):
        append_to_monitor(path, "CartPole-v1", 1.5, episode)
    assert path.read_text() == MONITOR


@pytest.mark.parametrize(
    "content", [b"", b"r,l,t\n", b"#{}\nr,l,t\n", b"#3\nr,l,t\n", b"\xff\xfe\x00", MONITOR.encode() + b"a,b,c\n"]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "monitor.csv"
    path.write_bytes(content)
    with pytest.raises(RunError, match="damaged"):
        read_monitor(path)


def test_the_summary_looks_at_the_last_fifty_episodes() -> None:
    episodes = Episodes()
    for number in range(80):
        episodes.add(float(number >= 55), 10, number)
    summary = summarize(episodes, steps=800, seconds=4.0)
    assert (summary.episodes, summary.steps, summary.last_episodes) == (80, 800, 50)
    assert summary.mean_return == pytest.approx(0.5)
    assert summary.ms_per_step == pytest.approx(5.0)
    nothing = summarize(Episodes(), steps=0, seconds=0.0)
    assert (nothing.mean_return, nothing.best_average, nothing.ms_per_step) == (None, None, None)
    lucky = Episodes()
    for number in range(30):
        lucky.add(100.0 if number == 0 else 1.0, 10, number)
    assert lucky.best_average < 50.0  # a lucky first episode is not the best


def test_the_returns_of_a_summary_are_those_of_the_tests_where_there_are_any() -> None:
    episodes, tests = Episodes(), Episodes()
    for number in range(20):
        episodes.add(1.0, 10, number)
        tests.add(2.0, 99, number)
    summary = summarize(episodes, steps=200, seconds=1.0, tests=tests)
    assert (summary.episodes, summary.steps, summary.test_episodes) == (20, 200, 20)
    assert (summary.mean_return, summary.best_average) == (2.0, 2.0)
    assert summarize(episodes, steps=200, seconds=1.0, tests=Episodes()).mean_return == 1.0
