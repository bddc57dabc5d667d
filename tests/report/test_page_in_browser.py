"""The page in a real browser, used with a real mouse and keyboard."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import NAMES, Browser, find_chromium, texts
from made_up import LAKE, LANDER, TABLE, run, study

from bdpi.report.page import make_page
from bdpi.report.panels import rows_of
from bdpi.report.statistics import learning_curve
from bdpi.runs.results import StoredRun

pytestmark = pytest.mark.skipif(find_chromium() is None, reason=f"no browser: none of {', '.join(NAMES)} is installed")
EVIL = "<!-- <script </script><script>window.evil = 1</script><img src=x onerror='window.evil = 1'>"
PANEL = f'#row0 [data-panel="{LAKE}"]'


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(make_page(study(), title="A made-up study", command="bdpi report runs"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    with contextlib.closing(Browser()) as browser:
        yield browser


@pytest.fixture
def browser(started: Browser, page: Path) -> Iterator[Browser]:
    """The page, just opened; at the end of every test, it must have had no error and loaded nothing else."""
    started.problems.clear()
    started.requests.clear()
    started.hover(0, 0)
    started.open(page)
    yield started
    assert started.problems == []
    assert [each for each in started.requests if not each.startswith("data:")] == [page.as_uri()]


def lines(browser: Browser, panel: str = PANEL) -> list[str]:
    """Series whose curves are drawn in a panel, those of the paper with a mark."""
    found: list[str] = browser.run(
        f"[...document.querySelectorAll('{panel} path.line')]"
        ".map(e => e.dataset.series + (e.classList.contains('paper') ? ' (paper)' : ''))"
    )
    return sorted(found)


def episodes(browser: Browser, panel: str = PANEL) -> tuple[float, float]:
    first, last = browser.run(f"(e => [+e.dataset.from, +e.dataset.to])(document.querySelector('{panel} svg'))")
    return first, last


def test_every_panel_has_its_curves(browser: Browser) -> None:
    shown = [browser.run(f"document.querySelectorAll('#row{row} .panel').length") for row in range(4)]
    assert shown == [2, 1, 1, 1]
    assert lines(browser) == ["BDPI", "BDPI (paper)", "PPO", "PPO (paper)"]
    assert lines(browser, f'#entropies [data-panel="{TABLE}"]') == ["BDPI"]
    sizes = browser.run(
        "[...document.querySelectorAll('path.line.ours')].map(e => (b => [b.width, b.height])(e.getBBox()))"
    )
    assert len(sizes) == 10
    assert all(width > 150 and height > 20 for width, height in sizes)
    assert browser.run("[...document.querySelectorAll('path')].every(e => !/NaN|Infinity/.test(e.getAttribute('d')))")


@pytest.mark.full
def test_a_curve_is_where_its_values_are(browser: Browser) -> None:
    """The highest point of BDPI's curve in pixels is its highest value, by the labels of the axis."""
    curve = learning_curve(rows_of(study())[0].panels[1].series[0])
    labels = browser.run(
        f"[...document.querySelectorAll('{PANEL} text[text-anchor=end]')].map(e => [+e.getAttribute('y') - 4, "
        "parseFloat(e.textContent.replace('−', '-')), +e.getAttribute('x')])"
    )
    left = min(x for *_, x in labels)
    (low_y, low), *_, (high_y, high) = sorted((y, value) for y, value, x in labels if x == left)[::-1]
    top = browser.run(f"document.querySelector('{PANEL} path.ours[data-series=BDPI]').getBBox().y")
    assert low + (low_y - top) / (low_y - high_y) * (high - low) == pytest.approx(curve.mean.max(), abs=0.02)


def test_series_are_switched_off_and_on_by_the_legend(browser: Browser) -> None:
    button = '#row0 .legend [data-series="BDPI"]'
    other = lines(browser, f'#row2 [data-panel="{LAKE}"]')
    browser.click(button)
    assert lines(browser) == ["PPO", "PPO (paper)"]
    assert lines(browser, f'#row0 [data-panel="{LANDER}"]') == ["PPO", "PPO (paper)"]
    assert lines(browser, f'#row2 [data-panel="{LAKE}"]') == other  # rows have their own legend
    assert browser.run(f"document.querySelector('{button}').getAttribute('aria-pressed')") == "false"
    browser.click(button)
    assert lines(browser) == ["BDPI", "BDPI (paper)", "PPO", "PPO (paper)"]
    assert browser.run(f"document.querySelector('{button}').getAttribute('aria-pressed')") == "true"


@pytest.mark.full
def test_a_series_can_be_shown_alone_and_all_can_be_hidden(browser: Browser) -> None:
    browser.click('#row0 .legend [data-series="PPO"]', shift=True)
    assert lines(browser) == ["PPO", "PPO (paper)"]
    browser.click('#row0 .legend [data-series="PPO"]')
    assert lines(browser) == []
    left, top, width, height = browser.box(f"{PANEL} svg")
    browser.hover(left + width / 2, top + height / 2)
    assert texts(browser, f"{PANEL} .tip:not([hidden])") == []


@pytest.mark.full
def test_the_papers_curves_and_the_bands_can_be_hidden(browser: Browser) -> None:
    browser.click('#row0 .legend [data-series="/paper"]')
    assert lines(browser) == ["BDPI", "PPO"]
    assert browser.run(f"document.querySelectorAll('{PANEL} path.band').length") == 2
    browser.click('#row0 .legend [data-series="/bands"]')
    assert browser.run(f"document.querySelectorAll('{PANEL} path.band').length") == 0


def test_pointing_at_a_curve_shows_its_values(browser: Browser) -> None:
    left, top, width, height = browser.box(f"{PANEL} svg")
    browser.hover(left + 0.7 * width, top + height / 2)
    (text,) = texts(browser, f"{PANEL} .tip:not([hidden])")
    episode = int(re.findall(r"episode (\d+)", text)[0])
    assert 30 <= episode <= 50
    for series in rows_of(study())[0].panels[1].series:
        curve = learning_curve(series)
        at = int((curve.episodes == episode).argmax())
        values = [f"{value:.2f}".replace("-", "−") for value in (curve.mean[at], curve.low[at], curve.high[at])]
        (shown,) = re.findall(rf"{series.name} 4 of 5 runs\s+(\S+ \[\S+ \S+\])", text)
        assert shown == f"{values[0]} [{values[1]}, {values[2]}]"
    browser.hover(1, 1)
    assert texts(browser, f"{PANEL} .tip:not([hidden])") == []


@pytest.mark.full
def test_dragging_zooms_and_a_double_click_shows_everything(browser: Browser) -> None:
    before = episodes(browser)
    assert before == (0, 60)
    left, top, width, height = browser.box(f"{PANEL} svg")
    middle = top + height / 2
    browser.drag((left + 0.5 * width, middle), (left + 0.75 * width, middle))
    first, last = episodes(browser)
    assert 20 < first < 32
    assert 38 < last < 50
    assert episodes(browser, f'#row0 [data-panel="{LANDER}"]') == before
    browser.click(f"{PANEL} svg", times=2)
    assert episodes(browser) == before
    browser.drag((left + 0.5 * width, middle), (left + 0.75 * width, middle))
    browser.click(f"{PANEL} figcaption button:not([hidden])")
    assert episodes(browser) == before


@pytest.mark.full
def test_panels_can_be_read_with_the_keyboard(browser: Browser) -> None:
    browser.run(f"document.querySelector('{PANEL} svg').focus()")
    browser.key("Home")
    assert "episode 1;" in texts(browser, "#said")[0].replace("\n", " ")
    for _ in range(3):
        browser.key("ArrowRight")
    assert re.search(r"BDPI 4 of 5 runs", texts(browser, "#said")[0])
    browser.key("+")
    assert episodes(browser)[1] < 60
    browser.key("0")
    assert episodes(browser) == (0, 60)


@pytest.mark.full
def test_a_panel_can_be_enlarged(browser: Browser) -> None:
    before = browser.box(f"{PANEL} svg")[2]
    browser.click(f"{PANEL} figcaption button:last-child")
    browser.run("new Promise(done => setTimeout(done, 100))")
    after = browser.box(f"{PANEL} svg")[2]
    assert after > 1.5 * before
    assert browser.run(f"document.querySelector('{PANEL} path.ours').getBBox().width") > 0.8 * after


@pytest.mark.full
def test_there_is_a_dark_and_a_light_page(browser: Browser) -> None:
    look = (
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color, "
        f"getComputedStyle(document.querySelector('{PANEL} path.ours')).stroke]"
    )
    light = browser.run(look)
    try:
        browser.media(prefers_color_scheme="dark")
        dark = browser.run(look)
        assert light[0] == "rgb(255, 255, 255)"
        assert dark[0] == "rgb(21, 24, 28)"
        assert dark[1] != light[1]
        assert dark[2] != light[2]
        browser.click("#theme")
        assert browser.run(look) == light
        browser.click("#theme")
        assert browser.run(look) == dark
    finally:
        browser.media()


@pytest.mark.full
@pytest.mark.parametrize("width", [360, 800, 1920])
def test_the_page_fits_any_window(browser: Browser, width: int) -> None:
    try:
        browser.resize(width, 800)
        browser.run("new Promise(done => setTimeout(done, 100))")
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run(
            "[...document.querySelectorAll('svg')].every(e => Math.abs(e.viewBox.baseVal.width - e.clientWidth) < 2)"
        )
    finally:
        browser.resize(1280, 900)


@pytest.mark.full
def test_controls_have_names(browser: Browser) -> None:
    assert browser.run("[...document.querySelectorAll('button')].every(e => e.innerText.trim() || e.hidden)")
    assert browser.run("[...document.querySelectorAll('svg, [role=region]')].every(e => e.getAttribute('aria-label'))")
    assert browser.run("document.documentElement.lang") == "en"
    assert browser.run("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size") == browser.run(
        "document.querySelectorAll('[id]').length"
    )


def test_names_that_are_markup_are_shown_as_text(started: Browser, tmp_path: Path) -> None:
    path = tmp_path / "evil.html"
    runs = [run([1.0, 2.0, 3.0], series=EVIL, environment=f"{EVIL}-v0", row=EVIL, seed=seed) for seed in range(2)]
    path.write_text(make_page(runs, title=EVIL, command=EVIL), encoding="utf-8")
    started.problems.clear()
    started.open(path)
    assert texts(started, "h1") == [EVIL]
    assert texts(started, ".legend button")[0] == EVIL
    left, top, width, height = started.box(".panel svg")
    started.hover(left + width / 2, top + height / 2)
    assert EVIL in texts(started, ".tip")[0]
    assert started.run("window.evil") is None
    assert started.problems == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("runs", "curves"),
    [
        ([], []),
        ([run([])], ["BDPI (paper)"]),
        ([run([], environment="X-v0")], []),
        ([run([1.0])], ["BDPI", "BDPI (paper)"]),
        ([run([1.0, 2.0], environment="X-v0")], ["BDPI"]),
        ([run([float("nan")] * 3, environment="X-v0")], ["BDPI"]),
    ],
    ids=["no runs", "no episodes", "nothing at all", "one episode", "one run", "not a number"],
)
def test_pages_of_little_work_too(started: Browser, tmp_path: Path, runs: list[StoredRun], curves: list[str]) -> None:
    path = tmp_path / "little.html"
    path.write_text(make_page(runs, title="t", command="c"), encoding="utf-8")
    started.problems.clear()
    started.open(path)
    assert lines(started, ".panel") == curves
    if runs:
        left, top, width, height = started.box(".panel svg")
        started.hover(left + width / 2, top + height / 2)
    assert started.problems == []
