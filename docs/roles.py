"""Turns the cross-references of docstrings into code, as Markdown shows it: :func:`name` and ``name``."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|mod|meth|data|attr):`~?([^`]+)`")


class Roles(griffe.Extension):
    """Rewrites every docstring once it is read."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Replaces the roles of one object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value)
