"""Pages of the site: they are written for the repository, and keep the links that they have there.

A link to a file in docs/ leads to its page. CHANGELOG.md, CONTRIBUTING.md and SECURITY.md become pages, too. Any other
file of the repository has no page: with ``repo_url`` in mkdocs.yml its name is a link to it there, otherwise its name.
A link to a file that there is not fails a strict build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {2}(?=\S)", re.MULTILINE)  # what goes on in a list; Python-Markdown wants four spaces
log = logging.getLogger("mkdocs.pages")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links of the repository into links of the site, and indent lists as the site needs it."""
    here = page.file.src_uri
    source = next((name for name, to in PAGES.items() if to == here), f"docs/{here}")

    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        path, hash_, anchor = target.partition("#")
        if not path or ":" in path:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if path in PAGES or path.startswith("docs/"):
            to = PAGES.get(path, path.removeprefix("docs/"))
            return f"[{text}]({posixpath.relpath(to, posixpath.dirname(here) or '.')}{hash_}{anchor})"
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which does not exist", source, path)
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{hash_}{anchor})"
        is_name = " " not in text and "`" not in text and ("/" in text or "." in text)
        return f'<span title="{path}">{f"`{text}`" if is_name else text}</span>'

    parts = FENCE.split(LINK.sub(link, markdown))  # every second one is code
    parts[::2] = [INDENTED.sub("    ", part) for part in parts[::2]]
    return "".join(parts)
