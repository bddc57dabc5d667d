"""The documentation site in a real browser, from a server as readers have it."""

from __future__ import annotations

import contextlib
import functools
import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from browser import NAMES, Browser, find_chromium, texts

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(find_chromium() is None, reason=f"no browser: none of {', '.join(NAMES)} is installed"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *values: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with contextlib.closing(Browser()) as started:
        yield started


def wait_for(browser: Browser, condition: str) -> None:
    deadline = time.monotonic() + 30
    while not holds(browser, condition):
        assert time.monotonic() < deadline, f"never true: {condition}"
        time.sleep(0.1)


def holds(browser: Browser, condition: str) -> bool:
    """Not while the browser goes from one page to another."""
    try:
        return bool(browser.run(condition))
    except AssertionError as error:
        if "target navigated" in str(error):
            return False
        raise


def titles(entries: list[object]) -> list[str]:
    """Of all that `nav` names: sections and, where they have one, pages."""
    found: list[str] = []
    for entry in entries:
        if isinstance(entry, dict):
            for title, inside in entry.items():
                found += [title, *(titles(inside) if isinstance(inside, list) else [])]
    return found


def test_the_pages_load_without_an_error(browser: Browser, site: Path, address: str) -> None:
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        browser.problems.clear()
        browser.requests.clear()
        browser.open(address + page)
        assert browser.problems == [], page
        assert [each for each in browser.requests if not each.startswith((address, "data:", "blob:"))] == [], page
        assert browser.run("document.querySelector('h1').innerText.length > 2"), page
        broken = "[...document.images].filter(e => e.complete && !e.naturalWidth).map(e => e.src)"
        assert browser.run(broken) == [], page


def test_the_navigation_leads_to_pages(browser: Browser, address: str) -> None:
    browser.open(f"{address}index.html")
    shown = browser.run(
        "[...document.querySelectorAll('.md-nav--primary .md-nav__link .md-ellipsis')].map(e => e.textContent.trim())"
    )
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)["nav"]
    assert len(titles(nav)) > 20
    assert set(titles(nav)) <= set(shown)
    browser.click(".md-nav--primary a[href='choosing.html']")
    wait_for(browser, "document.readyState == 'complete' && location.pathname == '/choosing.html'")
    assert texts(browser, "h1")


def test_the_search_box_finds_a_page(browser: Browser, address: str) -> None:
    browser.problems.clear()
    browser.open(f"{address}index.html")
    browser.click(".md-search__input")
    for letter in "journal":
        browser.key(letter)
    wait_for(browser, "document.querySelectorAll('.md-search-result__link').length > 0")
    links = browser.run("[...document.querySelectorAll('.md-search-result__link')].map(e => e.pathname)")
    assert any("robots.html" in link or "files.html" in link for link in links), links
    assert browser.problems == []
