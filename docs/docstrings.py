"""Turns the docstrings of this project into reStructuredText for Sphinx.

They say what a parameter is in a line "`timeout`: seconds for a row", whose continuation is indented, and what a
DataFrame holds in "In:" and "Out:". Code is indented after a line that ends in a colon. Nothing is emphasized, so a
star is a star.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module
from typing import Any

from pydantic import BaseModel
from sphinx.application import Sphinx

_ITEM = re.compile(r"(?P<names>`[^`]+`(?:,? (?:and )?`[^`]+`)*|In|Out): +(?P<text>.*)")
_SECTION = re.compile(r"(Raises|Returns|Yields|Args|Attributes|Example|Examples):")


def readable(lines: list[str]) -> list[str]:
    """The docstring with its lists and its code marked up."""
    return list(_blocks(lines))


def _blocks(lines: list[str]) -> Iterator[str]:
    at, last = 0, ""
    while at < len(lines):
        line = lines[at]
        item = _ITEM.fullmatch(line)
        if item is not None:
            more = _indented(lines, at + 1)
            yield from ("", item["names"].replace("`", "``"))
            yield from (f"    {_text(each.strip())}" for each in (item["text"], *more))
            yield ""
            at, last = at + 1 + len(more), ""
        elif _SECTION.fullmatch(line):
            body = _section(lines, at + 1)
            yield from ("", line, *map(_text, body))
            at, last = at + 1 + len(body), ""
        elif line.startswith(" ") and not lines[at - 1] and last.endswith(":"):
            code = _section(lines, at)
            yield from ("::", "", *code, "")
            at, last = at + len(code), ""
        else:
            yield _text(line)
            at, last = at + 1, line or last


def _indented(lines: list[str], at: int) -> list[str]:
    """The indented lines from here on, up to a blank one."""
    end = at
    while end < len(lines) and lines[end].startswith(" "):
        end += 1
    return lines[at:end]


def _section(lines: list[str], at: int) -> list[str]:
    """The indented and the blank lines from here on."""
    end = at
    while end < len(lines) and (not lines[end] or lines[end].startswith(" ")):
        end += 1
    return lines[at:end]


def _text(line: str) -> str:
    """The line with its stars and closing underscores as they stand, but for what is between backticks."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"(?<=\w)_(?!\w)", r"\\_", part.replace("*", r"\*")) for part in parts[::2]]
    return "`".join(parts)


def process(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    if what == "data" and "\n".join(lines).strip() == (type(value).__doc__ or "").strip():
        lines.clear()  # a constant without a docstring: Python gives that of its class
    if what == "attribute" and not any(lines):
        lines[:] = [_described(name)]
    lines[:] = readable(lines)


def _described(name: str) -> str:
    """What the model says about this field."""
    path, _, field = name.rpartition(".")
    module, _, model = path.rpartition(".")
    try:
        owner = getattr(import_module(module), model)
    except (ImportError, AttributeError, ValueError):
        return ""
    found = getattr(owner, "model_fields", {}).get(field)
    return (found.description or "") if found is not None else ""


def shows_every_field(value: type) -> bool:
    """A class whose attributes need no docstring to be worth a line."""
    return issubclass(value, Enum | BaseModel) or is_dataclass(value)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process, priority=400)  # before napoleon
    return {"parallel_read_safe": True}
