"""The documentation site: what its pages show is run, its links lead somewhere, and nothing in it needs a network."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
# The pages whose Python is run here, and what makes it shorter. Those of `others` below have tests of their own.
PAGES = {
    "choosing.md": {"2_000": "300"},
    "environments.md": {"1_000": "300", "n_eval_episodes=5": "n_eval_episodes=1"},
    "faq.md": {"500": "260"},
    "index.md": {"6_000": "280", "1_000": "20", "n_eval_episodes=20": "n_eval_episodes=1"},
    "logging.md": {"2_000": "300"},
    "pictures.md": {},
}


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)


def test_every_page_with_python_is_run():
    others = {"clients.md", "robots.md", "serve.md", "speed.md"}
    assert {path.name for path in (ROOT / "docs").glob("*.md") if blocks(path.name)} == PAGES.keys() | others


@pytest.mark.parametrize("page", PAGES)
def test_the_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    namespace: dict[str, object] = {}
    for number, code in enumerate(blocks(page)):
        for long, short in PAGES[page].items():
            code = code.replace(long, short)
        if "gym.register" in code:  # the page says: save this as my_room.py
            Path("my_room.py").write_text(code)
        else:
            exec(compile(code, f"{page}, example {number + 1}", "exec"), namespace)
    agent = namespace["agent"]
    assert page == "choosing.md" or agent._n_updates > 0  # DQN is the last one there


def test_every_command_exists():
    from bdpi.cli import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    text = "".join((ROOT / "docs" / page).read_text() for page in PAGES)
    shown = set(re.findall(r"(?:\$ |`)bdpi ([a-z]+)", text))
    assert {"check", "doctor", "play", "train"} <= shown <= known


def test_the_citation_names_this_version():
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version[1]


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given["id"]} if given.get("id") else set()
        self.links += [(tag, given[name]) for name in ("href", "src") if given.get(name)]


@pytest.mark.full  # ten seconds and more
def test_the_site_is_built_without_a_broken_link_or_a_remote_part(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {}
    for path in tmp_path.rglob("*.html"):
        pages[path] = Links()
        pages[path].feed(path.read_text(encoding="utf-8"))
    assert len(pages) > 20
    for page, parsed in pages.items():
        for tag, link in parsed.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                assert tag == "a", f"{page.name} loads {link}"
            elif page.name != "404.html":  # whose links begin at the root of the server
                target = (page.parent / unquote(url.path)).resolve() if url.path else page
                assert target.exists(), f"{page.name} links to {link}"
                if url.fragment and target in pages and not url.fragment.startswith("__"):
                    assert unquote(url.fragment) in pages[target].ids, f"{page.name} links to {link}"
