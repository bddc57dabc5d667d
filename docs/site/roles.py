"""Docstrings on the site: Sphinx's roles, as in :class:`~bdpi.BDPI`, become code in Markdown."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":(?:py:)?(?:attr|class|data|func|meth|mod):`(?:~[\w.]*?(\w+)|([^`~]+))`")


class Roles(Extension):
    """Replaces roles before docstrings are parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for each object that was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(lambda found: f"`{found[1] or found[2]}`", obj.docstring.value)
