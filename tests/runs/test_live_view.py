"""What the views show, rendered for real."""

import io
import re
import time
from pathlib import Path

from rich.console import Console

from bdpi.runs.formatting import duration, number
from bdpi.runs.live import PlainView, Speed, TerminalView, braille_plot, time_left
from bdpi.runs.progress import Progress, RunInfo

INFO = RunInfo("FrozenLake8x8-v1", "bdpi", 3, "native", Path("runs/x"))


def some_progress(n_episodes: int = 40, episodes_wanted: int | None = 100) -> Progress:
    progress = Progress(episodes_wanted, None if episodes_wanted else 1000)
    for episode in range(n_episodes):
        progress.episodes.add(float(episode), 10, float(episode))
    progress.steps = 10 * n_episodes + 4
    progress.episode_steps = 4
    return progress


def panel(progress: Progress, width: int = 100) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=30, color_system="truecolor")
    view = TerminalView(console)
    view._speed.update(0, now=time.monotonic() - 2.0)
    console.print(view.render(INFO, progress))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shows(stream: io.StringIO, text: str, times: int = 1) -> None:
    """Wait for it."""
    deadline = time.monotonic() + 60
    while plain(stream.getvalue()).count(text) < times and time.monotonic() < deadline:
        time.sleep(0.01)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_the_panel_shows_all_that_was_promised() -> None:
    text = plain(panel(some_progress()))
    first = ("BDPI on FrozenLake8x8-v1", "seed 3, native learner", "episode 41/100", "40%")
    for part in (*first, "return 39.0", "average", "steps 404"):
        assert part in text
    assert "step 404/1000" in plain(panel(some_progress(episodes_wanted=None)))
    assert re.search(r"steps/s \d", text)
    assert re.search(r"\d:\d\d left", text)
    assert any("\u2801" <= character <= "\u28ff" for character in text)  # the curve


def test_where_there_are_tests_both_views_show_their_returns() -> None:
    progress = some_progress(n_episodes=40)
    for _ in range(39):
        progress.tests.add(-7.25, 10, 1.0)
    text = plain(panel(progress))
    assert "episode 41/100" in text
    assert "test return -7.25" in text
    assert "39.0" not in text  # the return of the last training episode


def test_the_panel_shows_progress_before_the_first_episode_ends() -> None:
    progress = Progress(100, None)
    progress.steps = progress.episode_steps = 500
    text = plain(panel(progress))
    assert "episode 1/100" in text
    assert "steps 500" in text
    assert "- left" in text
    assert "first episode" in text


def test_the_panel_fits_narrow_terminals() -> None:
    for width in (30, 50, 200):
        assert max(len(line) for line in plain(panel(some_progress(), width)).splitlines()) <= width


def test_a_whole_run_is_drawn_in_place_and_the_cursor_comes_back() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=90, height=30)
    asked = []
    view = TerminalView(console, stopping=lambda: bool(asked))
    progress = some_progress()
    progress.begin()
    view.began(INFO, progress)
    view.note("LunarLander-v3: net_arch=[256], as in the paper [not markup]")
    assert isinstance(console.file, io.StringIO)
    shows(console.file, "left")
    asked.append(True)
    shows(console.file, "stopping after this step")
    view.doing("saving")
    shows(console.file, "saving")
    view.ended()
    output = console.file.getvalue()
    assert "\x1b[1A" in output  # it goes up to draw over itself
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")
    text = plain(output)
    for part in ("net_arch=[256], as in the paper [not markup]", "stopping after this step", "saving", "saved"):
        assert part in text


def test_plain_lines_come_while_the_first_episode_is_going_on() -> None:
    stream = io.StringIO()
    progress = Progress(100, None)
    view = PlainView(stream, seconds=0.05)
    view.began(INFO, progress)
    progress.steps = progress.episode_steps = 30
    shows(stream, "episode 1/100", times=2)
    view.doing("saving")
    view.ended()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "BDPI on FrozenLake8x8-v1, seed 3, native learner: runs/x"
    assert len(lines) >= 3
    assert all("episode 1/100" in line and re.search(r"steps \d+", line) for line in lines[1:])
    assert stream.getvalue().isascii()
    assert all(character.isprintable() or character == "\n" for character in stream.getvalue())


def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    stream = io.StringIO()
    stream.close()
    view = PlainView(stream, seconds=0.01)
    view.began(INFO, some_progress())
    time.sleep(0.1)
    view.ended()


def test_the_curve_rises_from_bottom_left_to_top_right() -> None:
    lines = braille_plot([0.0, 1.0], 8, 4)
    assert [len(line) for line in lines] == [8] * 4
    assert [min(i for i, dot in enumerate(line) if dot != "\u2800") for line in lines] == [6, 4, 2, 0]
    assert ord(lines[-1][0]) & 0x40  # the lowest left dot
    assert ord(lines[0][-1]) & 0x08  # the highest right dot
    steep = braille_plot([0.0] * 20 + [1.0] * 20, 10, 5)  # has no gaps
    assert all(any(dot != "\u2800" for dot in line) for line in steep)
    assert braille_plot([3.0, 3.0], 2, 2)[1] == "\u28c0\u28c0"  # flat and single values can be drawn
    assert len(braille_plot([3.0], 2, 2)) == 2


def test_speed_is_that_of_the_last_seconds() -> None:
    speed = Speed()
    assert speed.update(0, now=0.0) is None
    assert speed.update(100, now=1.0) == 100.0
    for second in range(2, 40):
        latest = speed.update(100 + 10 * second, now=float(second))
    assert latest is not None
    assert abs(latest - 10.0) < 1e-9


def test_the_time_left_is_judged_by_recent_episodes_and_the_present_speed() -> None:
    progress = some_progress(n_episodes=40, episodes_wanted=100)
    assert time_left(progress, 10.0) == "1:00"  # 60 episodes of 10 steps, less the 4 that are done
    for _ in range(20):
        progress.episodes.add(0.0, 100, 0.0)
    assert time_left(progress, 10.0) == "6:40"  # 40 episodes that have become longer
    assert time_left(some_progress(episodes_wanted=None), 10.0) == "1:00"  # 596 steps
    assert time_left(Progress(100, None), 10.0) == "-"
    assert time_left(progress, None) == "-"


def test_times_and_numbers_are_readable() -> None:
    assert [duration(s) for s in (0, 59.6, 3600, None)] == ["0:00", "1:00", "1:00:00", "-"]
    assert [number(x) for x in (0.625, -291.31, None)] == ["0.62", "-291.3", "-"]
