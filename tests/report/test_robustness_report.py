"""Reports on runs with random configurations."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import LAKE, LANDER, learned, run
from PIL import Image

from bdpi.report import write_report
from bdpi.report.configurations import comparisons_of
from bdpi.report.robustness import draw_importances, draw_robustness, robustness_tables, stretched
from bdpi.runs.config import State
from bdpi.runs.errors import RunError
from bdpi.runs.results import StoredRun
from bdpi.studies import load_study

EPISODES = 30
SPACES = {series.name: series.space for series in load_study("robustness").series}


def drawn(series: str, number: int, best: float, environment: str = LANDER, status: State = "finished") -> StoredRun:
    """A run of the study whose score follows its learning rate, mostly."""
    space = SPACES[series]
    assert space is not None
    configuration = space.draw(series, number)
    returns = best * configuration.indices["learning_rate"][0] + learned(number, 1.0, EPISODES)
    place = {"study": "robustness", "row": "robustness", "environment": environment}
    drawn = {"hyperparameters": configuration.settings, "configuration": dict(configuration.indices)}
    return run(returns, series=series, seed=number, status=status, **drawn, **place)


def robustness(configs: int = 40) -> list[StoredRun]:
    runs = [drawn("BDPI", number, 10.0) for number in range(configs)]
    runs += [drawn("PPO", number, 8.0) for number in range(configs // 2)]
    return [*runs, drawn("PPO", 90, 100.0, status="failed"), drawn("PPO", 91, 100.0, status="running")]


def test_scores_are_total_rewards_of_finished_runs() -> None:
    (comparison,) = comparisons_of(robustness())
    assert (comparison.environment, comparison.n_episodes) == (LANDER, EPISODES)
    bdpi, ppo = comparison.algorithms
    assert (bdpi.name, ppo.name) == ("BDPI", "PPO")
    assert bdpi.scores[3] == pytest.approx(robustness()[3].returns.sum())
    assert (len(ppo.scores), ppo.n_drawn, ppo.unfinished) == (20, 22, "1 failed, 1 running")
    assert bdpi.points.shape == (40, 8)
    assert (bdpi.points.min(), bdpi.points.max()) == (0.0, 1.0)
    assert bdpi.labels["net_arch", 2] == "96"
    assert ppo.labels["net_arch", 2] == "96-96"


def test_the_episodes_that_all_finished_runs_have_are_counted() -> None:
    short = drawn("BDPI", 41, 10.0)
    short = replace(short, returns=short.returns[:5], lengths=short.lengths[:5])
    (comparison,) = comparisons_of([*robustness(), short])
    assert comparison.n_episodes == 5
    assert comparison.algorithms[0].scores[3] == pytest.approx(robustness()[3].returns[:5].sum())


def test_runs_from_different_spaces_are_not_mixed() -> None:
    other = drawn("BDPI", 3, 10.0)
    other.record.status.configuration["n_critics"] = (0, 2)  # type: ignore[index]
    with pytest.raises(RunError, match="2 different spaces"):
        comparisons_of([*robustness(), other])


def test_the_tables() -> None:
    scores, importance, best = robustness_tables(comparisons_of(robustness()))
    bdpi, ppo = scores.rows
    # PPO's best is below all configurations of BDPI that have the best learning rate, and above all others.
    best_rate = np.mean([run.record.status.configuration["learning_rate"][0] == 4 for run in robustness()[:40]])
    assert bdpi[:3] == ("LunarLander, 30 episodes", "BDPI", "40")
    assert ppo[2] == "20 of 22 (1 failed, 1 running)"
    assert (bdpi[5], ppo[5]) == ("1167", "2452")
    assert bdpi[9].startswith(f"{100 * best_rate:.0f} %")
    assert (bdpi[10], ppo[10]) == ("PPO", "BDPI")
    assert ppo[9].startswith("0 %")
    first = [next(row for row in importance.rows if row[1] == name) for name in ("BDPI", "PPO")]
    assert [(row[2], row[3], row[6]) for row in first] == [("learning_rate", "0.001", "yes")] * 2
    assert len(importance.rows) == 8 + 6
    assert [row[4] for row in best.rows] == [*"12345"] * 2
    assert all("learning_rate=0.001" in row[3] for row in best.rows if row[1] == "BDPI")


def test_the_paper_has_numbers_for_its_own_environment_only() -> None:
    (table, *_) = robustness_tables(comparisons_of([drawn("BDPI", number, 1.0, LAKE) for number in range(4)]))
    assert table.rows[0][5] == "–"


def test_curves_are_stretched_to_a_common_axis() -> None:
    assert stretched(3).tolist() == [0.0, 50.0, 100.0]
    assert (stretched(2000)[0], stretched(2000)[-1]) == (0.0, 100.0)


def test_the_figures_have_all_algorithms(tmp_path: Path) -> None:
    comparisons = comparisons_of(robustness())
    for draw in (draw_robustness, draw_importances):
        path = tmp_path / "figure.png"
        draw(comparisons, [path, tmp_path / "figure.pdf"])
        with Image.open(path) as picture:
            colours = np.asarray(picture.convert("RGB"), int).reshape(-1, 3)
        for colour in ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00)):  # BDPI is blue, PPO orange
            assert (np.abs(colours - colour).sum(axis=1) < 30).sum() > 300
    for draw in (draw_robustness, draw_importances):
        with pytest.raises(ValueError, match=r"no run is finished|too few configurations"):
            draw(comparisons_of([drawn("PPO", 0, 1.0, status="running")]), [tmp_path / "none.png"])


def test_the_report_of_such_a_study(tmp_path: Path) -> None:
    written = write_report(robustness(), tmp_path, title="Robust?", command="bdpi report runs")
    names = ["robustness.png", "robustness.pdf", "importance.png", "importance.pdf", "tables.md", "index.html"]
    assert [path.name for path in written] == names
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "## Robustness to hyper-parameters" in text
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count('<img src="data:image/png;base64,') == 2
    assert "Which hyper-parameter matters" in page
    assert "62 runs (1 failed, 60 finished, 1 running) in 2 series and 1 environment" in page


def test_a_report_can_have_both_kinds_of_runs(tmp_path: Path) -> None:
    runs = [*robustness(), *(run(learned(seed, 0.7), seed=seed) for seed in range(3))]
    names = [path.name for path in write_report(runs, tmp_path, title="t", command="c")]
    assert names[:2] == ["figure.png", "figure.pdf"]
    assert "robustness.png" in names
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "## Algorithms" in text
    assert "## Robustness to hyper-parameters" in text


def test_a_study_that_has_just_begun_can_be_reported_on(tmp_path: Path) -> None:
    names = [p.name for p in write_report([drawn("PPO", 0, 1.0, status="running")], tmp_path, title="t", command="c")]
    assert names == ["tables.md", "index.html"]
    assert "0 of 1 (1 running)" in (tmp_path / "tables.md").read_text(encoding="utf-8")
