"""What is in the page, as text; how it behaves is tested in a browser."""

import html
import html.parser
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import LAKE, run, study
from PIL import Image

from bdpi.report import page as page_module
from bdpi.report.page import make_page
from bdpi.report.panels import rows_of
from bdpi.report.statistics import learning_curve
from bdpi.runs.results import StoredRun

EVIL = '</script><script>alert(\'&"x")</script><img src=x onerror=alert(1)>'


class Reader(html.parser.HTMLParser):
    """Collects tags, text and attributes, and checks that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.attributes: list[tuple[str, str | None]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in ("meta", "link", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def made(runs: list[StoredRun], **changed: str) -> str:
    return make_page(runs, **{"title": "A study", "command": "bdpi report runs", **changed})


def data_in(text: str) -> dict[str, Any]:
    (content,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    found: dict[str, Any] = json.loads(content)
    return found


def test_the_page_is_whole_and_needs_nothing_from_elsewhere() -> None:
    text = made(study())
    reader = Reader(text)
    addresses = [value or "" for name, value in reader.attributes if name in ("src", "href")]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "default-src 'none'" in text
    assert "{{" not in text
    assert reader.tags.count("h1") == 1
    ids = {value for name, value in reader.attributes if name == "id"}
    links = [address[1:] for address in addresses if address.startswith("#")]
    assert len(links) > 5
    assert set(links) <= ids
    for name in ("Returns", "Episodes to a threshold", "Probability of improvement", "bdpi report runs", "4 of 5"):
        assert name in reader.text


def test_curves_are_those_of_the_statistics() -> None:
    panel = rows_of(study())[0].panels[1]
    drawn = data_in(made(study()))["rows"][0]["panels"][1]
    assert drawn["environment"] == LAKE
    kinds = [(curve["series"], "paper" in curve) for curve in drawn["curves"]]
    assert kinds == [("BDPI", False), ("PPO", False), ("BDPI", True), ("PPO", True)]
    expected, curve = learning_curve(panel.series[0]), drawn["curves"][0]
    assert drawn["shared"][curve["x"]] == expected.episodes.tolist()
    assert curve["y"] == pytest.approx(expected.mean.tolist(), rel=1e-3, abs=1e-6)
    assert curve["high"] == pytest.approx(expected.high.tolist(), rel=1e-3, abs=1e-6)
    assert curve["runs"] == "4 of 5"


def test_texts_of_runs_cannot_become_markup() -> None:
    stored = run([1.0, 2.0], series=EVIL, row=EVIL, environment=EVIL, study=EVIL, hyperparameters={EVIL: [EVIL]})
    stored.record.status.versions = {EVIL: EVIL}
    innocent = Reader(made([run([1.0, 2.0], environment="X-v0")]))
    reader = Reader(made([stored], title=EVIL, command=EVIL))
    assert reader.tags.count("script") == innocent.tags.count("script") == 2
    assert reader.tags.count("img") == 0
    assert not any(name.startswith("on") for name, _ in reader.attributes)
    assert EVIL in reader.text


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [run([])],
        [run([1.0])],
        [run([float("nan"), float("inf"), 1.0], seed=seed) for seed in range(2)],
        [run([1.0, 2.0], hyperparameters={"": {}, "a": {"b": {"c": 1}}, "a.b": 2})],
        [run([1.0], hyperparameters={"x": np.float32(1), "y": {1, 2}}), run([1.0], hyperparameters={"x": {}}, seed=2)],
    ],
    ids=["no runs", "no episodes", "one episode", "not finite", "odd configuration", "odd values"],
)
def test_whatever_runs_there_are_have_a_page(runs: list[StoredRun]) -> None:
    text = made(runs)
    Reader(text)
    assert "NaN" not in json.dumps(data_in(text))


def test_configurations_are_shown_once_and_differences_by_run() -> None:
    runs = [run([1.0], seed=seed) for seed in range(2)]
    runs.append(run([1.0], seed=2, hyperparameters={"n_critics": 99, "new": True}))
    for each, version in zip(runs, ("1.26.0", "2.4.6", "2.4.6"), strict=True):
        each.record.status.versions = {"numpy": version}
    text = made(runs)
    assert "2.4.6 (2 runs), 1.26.0 (1 run)" in text
    section = html.unescape(text[text.index('id="configurations"') :])
    assert section.count('"agent": "bdpi"') == 1
    assert section.count("hyperparameters.n_critics") == 1
    assert [section.count(f'<th scope="row" class="word">{value}</th>') for value in (16, 99)] == [2, 1]


def gif(folder: Path, n_bytes: int = 0) -> Path:
    folder.mkdir()
    Image.new("P", (30, 30)).save(folder / "policy.gif")
    with (folder / "policy.gif").open("ab") as file:
        file.write(bytes(n_bytes))
    return folder


def test_films_are_in_the_page(tmp_path: Path) -> None:
    text = made(study(film=gif(tmp_path / "run")))
    assert text.count("data:image/gif;base64,R0lGOD") == 1
    assert f"BDPI on {LAKE}, seed 1" in text
    assert "data:image/gif" not in made(study())
    runs = [
        run(np.full(10, value), seed=seed, path=gif(tmp_path / str(seed)))
        for seed, value in enumerate([5.0, 1.0, 9.0, 6.0, 2.0])
    ]
    assert f"BDPI on {LAKE}, seed 0 " in made(runs)  # of several, the film of the median run


def test_films_that_are_none_or_too_many_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = gif(tmp_path / "broken")
    (broken / "policy.gif").write_text("<svg onload=alert(1)>")
    assert "data:image" not in made([run([1.0], path=broken)])
    monkeypatch.setattr(page_module, "MAX_FILM_BYTES", 20_000)
    films = [gif(tmp_path / name, 12_000) for name in ("a", "b")]
    text = made([run([1.0], series=film.name, path=film) for film in films])
    assert text.count("data:image/gif") == 1
    assert "1 film would have made the page too large" in text


def test_a_study_of_full_size_stays_small() -> None:
    """Four environments, fourteen series, eight runs: less than a photograph."""
    noise = np.random.default_rng(0)
    runs = [
        run(noise.normal(size=1000), series=f"s{number}", environment=f"Env{environment}-v0", seed=seed)
        for environment in range(4)
        for number in range(14)
        for seed in range(8)
    ]
    assert len(made(runs)) < 900_000


def test_what_runs_found_about_themselves_is_shown_with_the_runs_concerned() -> None:
    found = {"code": "rewards-equal", "message": f"All rewards are 0 {EVIL}", "remedy": "Check the reward function."}
    poor, good = run(np.zeros(30), seed=3), run(np.arange(30), seed=4)
    poor.record.status.findings = [found]
    good.record.status.findings = []
    reader = Reader(made([poor, good]))
    assert "Why runs may not learn" in reader.text
    assert found["message"] in reader.text
    assert found["remedy"] in reader.text
    assert '"findings"' not in reader.text  # what a run was is in its configuration, not how it went
    assert "Why runs may not learn" not in Reader(made([good])).text
