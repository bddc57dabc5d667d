"""The pictures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import LANDER, TABLE, run, study
from PIL import Image

from bdpi.report.entropy import EARLY_STEPS, entropies_of, running_average
from bdpi.report.figure import _draw_panel, draw_entropy, draw_figure, new_figure
from bdpi.report.panels import Panel, rows_of
from bdpi.runs.results import StoredRun


def pixels(path: Path, colour: str) -> int:
    """How many pixels have nearly this colour."""
    wanted = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)])
    with Image.open(path) as picture:
        return int((np.abs(np.asarray(picture.convert("RGB"), int) - wanted).sum(axis=2) < 30).sum())


def panel_axes(panel: Panel) -> Any:
    axes = new_figure(4, 3).add_subplot()
    _draw_panel(axes, panel, {"BDPI": "#0072b2"}, {})
    return axes


def drawn(runs: list[StoredRun], path: Path, title: str = "") -> Path:
    draw_figure(rows_of(runs), [path], title)
    return path


def test_the_figure_is_a_picture_and_a_pdf(tmp_path: Path) -> None:
    picture, document = tmp_path / "figure.png", tmp_path / "figure.pdf"
    draw_figure(rows_of(study()), [picture, document], "A made-up study")
    assert document.read_bytes().startswith(b"%PDF-")
    with Image.open(picture) as image:
        assert image.format == "PNG"
        # Four rows, and two columns at most.
        assert image.height > image.width


def test_series_are_drawn_in_their_colours(tmp_path: Path) -> None:
    both = drawn([run(np.ones(30), seed=0), run(np.zeros(30), series="PPO")], tmp_path / "both.png")
    one = drawn([run(np.ones(30), seed=0)], tmp_path / "one.png")
    blue, orange = "#0072b2", "#e69f00"
    assert min(pixels(both, blue), pixels(one, blue), pixels(both, orange)) > 500
    assert pixels(one, orange) == 0


def test_the_papers_curve_is_behind_ours_in_the_same_colour(tmp_path: Path) -> None:
    """Ours is a flat line, so whatever else is blue is the paper's; in a row that the paper does not have, nothing."""
    ours = np.zeros(1000)
    known = drawn([run(ours)], tmp_path / "known.png")
    unknown = drawn([run(ours, row="other")], tmp_path / "unknown.png")
    heights = []
    for path in (known, unknown):
        with Image.open(path) as picture:
            red, _, blue = np.moveaxis(np.asarray(picture.convert("RGB"), int), 2, 0)
        heights.append(int((blue > red + 60).any(axis=1).sum()))
    assert heights[1] < 30  # the line and its twin in the legend
    assert heights[0] > 150  # from 0 to 0.8, most of the panel


@pytest.mark.parametrize(
    "runs",
    [
        [run([])],
        [run([], environment="CartPole-v1", status="failed")],
        [run([1.0])],
        [run([1.0, float("nan"), float("inf"), 2.0], seed=seed) for seed in range(2)],
        [run(np.ones(9), series=f"agent {number}", environment=LANDER) for number in range(12)],
        [run(np.ones(9), environment="a_package:space/Name$_{x}^$-v3", series="$a_b^{$", row="x_$y^$")],
    ],
    ids=["nothing yet", "nothing at all", "one episode", "not finite", "many series", "odd names"],
)
def test_whatever_runs_there_are_can_be_drawn(tmp_path: Path, runs: list[StoredRun]) -> None:
    with Image.open(drawn(runs, tmp_path / "figure.png", "$odd_{$ title")) as picture:
        picture.verify()


def test_a_running_average_is_over_the_window_around_a_value() -> None:
    values = np.random.default_rng(0).normal(size=50)
    for window in (1, 2, 5, 10, 80):
        expected = [
            values[max(0, centre - (window - 1) // 2) : centre + window // 2 + 1].mean() for centre in range(50)
        ]
        assert running_average(values, window) == pytest.approx(np.array(expected))


def test_entropies_have_the_mean_and_deviation_over_runs() -> None:
    steps = np.linspace(1.5, 0.5, 400, dtype=np.float32)
    runs = [run([1.0], seed=seed, environment=TABLE, entropies=steps + 0.1 * seed) for seed in range(3)]
    runs.append(run([1.0], seed=3, environment=TABLE, entropies=(steps + 0.1)[:350]))
    runs.append(run([1.0], seed=4, environment=TABLE))
    (panel,) = entropies_of(runs)
    (curve,) = panel.curves
    assert panel.window == 2
    assert curve.count == "4"
    assert curve.steps.tolist() == list(range(1, 351))
    assert curve.mean[:-1] == pytest.approx((steps[:349] + steps[1:350]) / 2 + 0.1, abs=1e-5)
    assert curve.high - curve.mean == pytest.approx(np.full(350, np.std([0.0, 0.1, 0.2, 0.1])), abs=1e-5)


def test_of_long_runs_the_first_steps_are_shown_by_themselves() -> None:
    entropies = np.ones(10 * EARLY_STEPS, np.float32)
    early, whole = entropies_of([run([1.0], environment=TABLE, entropies=entropies)])
    assert early.title == "TableLong, first 5000 steps"
    assert early.curves[0].steps[-1] == EARLY_STEPS
    assert whole.curves[0].steps[-1] == 10 * EARLY_STEPS
    assert early.window < whole.window


def test_the_entropy_is_a_picture_and_without_runs_there_is_none(tmp_path: Path) -> None:
    draw_entropy(study(), [tmp_path / "entropy.png"])
    assert pixels(tmp_path / "entropy.png", "#0072b2") > 500
    with pytest.raises(ValueError, match="no runs"):
        draw_figure([], [tmp_path / "figure.png"])
    with pytest.raises(ValueError, match="no run has recorded"):
        draw_entropy([run([1.0])], [tmp_path / "none.png"])


def test_figures_are_fit_for_papers(tmp_path: Path) -> None:
    """TrueType fonts, 300 dots per inch, no text over curves, axes that show the data."""
    picture, document = tmp_path / "figure.png", tmp_path / "figure.pdf"
    draw_figure(rows_of(study()), [picture, document])
    content = document.read_bytes()
    assert b"/TrueType" in content or b"/Type0" in content
    assert b"/Type3" not in content
    with Image.open(picture) as image:
        assert image.info["dpi"][0] == pytest.approx(300, abs=1)


def test_axes_are_those_of_the_data_and_of_what_is_asked_for(tmp_path: Path) -> None:
    """The paper's curve goes on after our 30 episodes, and up to where ours do not go."""
    runs = [run(np.full(30, 0.01 * seed), seed=seed) for seed in range(4)]
    for (with_paper, x), n_lines, end, label in (
        ((True, "episodes"), 2, 30, "episode"),
        ((False, "episodes"), 1, 30, "episode"),
        ((True, "steps"), 1, 600, "environment step"),
    ):
        (row,) = rows_of(runs, with_paper, x)
        axes = panel_axes(row.panels[0])
        assert len(axes.lines) == n_lines
        assert axes.get_xlim() == (0, end)
        assert axes.get_ylim()[1] < 0.2
        assert axes.get_xlabel() == label
        renderer = axes.figure.canvas.get_renderer()
        axes.figure.draw_without_rendering()
        inside = axes.get_window_extent(renderer)
        for title in (axes.title, axes._left_title, axes._right_title):
            assert not title.get_text() or title.get_window_extent(renderer).y0 >= inside.y1
