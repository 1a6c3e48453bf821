"""Turns the docstrings of this project into reStructuredText for Sphinx.

They say what a parameter is in a line "`timeout`: seconds for a row", whose continuation is indented, and what a
DataFrame holds in "In:" and "Out:". "Raises:" has a line for each error. Code is indented after a line that ends in a
colon. Nothing is emphasized, so a star is a star.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, get_type_hints

from docutils import nodes
from pydantic import BaseModel
from sphinx.addnodes import desc_annotation
from sphinx.application import Sphinx

_ITEM = re.compile(r"(?P<names>`[^`]+`(?:,? (?:and )?`[^`]+`)*|In|Out): +(?P<text>.*)")
_METRIC = re.compile(r"(?P<before>.*?)Annotated\[(?P<type>.*), MetricSpec\(.*\)\]", re.DOTALL)
_NO_TEXT = re.compile(r"<[^<>]*(?:<[^<>]*>[^<>]*)*>")
_ENTRY = re.compile(r"    (?P<names>\w[\w., ]*?): +(?P<text>.*)")


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
        elif line.endswith(":") and _ENTRY.fullmatch("".join(lines[at + 1 : at + 2])):  # "Raises:", for example
            body = _section(lines, at + 1)
            yield from (_text(line), "", *_entries(body), "")
            at, last = at + 1 + len(body), ""
        elif line.startswith(" ") and not lines[at - 1] and last.endswith(":"):
            code = _section(lines, at)
            yield from ("::", "", *code, "")
            at, last = at + len(code), ""
        else:
            yield _text(line)
            at, last = at + 1, line or last


def _entries(body: list[str]) -> Iterator[str]:
    """A list of what a section names."""
    for line in body:
        entry = _ENTRY.fullmatch(line)
        if entry is not None:
            names = ", ".join(f"`{name}`" for name in entry["names"].split(", "))
            yield f"* {names}: {_text(entry['text'])}"
        elif line:
            yield f"  {_text(line.strip())}"


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
        lines.append(_help_of(name))
    lines[:] = readable(lines)
    if isinstance(value, type) and issubclass(value, BaseModel):
        lines.extend(_fields(value))


def _fields(model: type[BaseModel]) -> Iterator[str]:
    """A list of a model's fields, which have a description instead of a docstring."""
    for name, field in model.model_fields.items():
        if field.description:
            default = (
                "required"
                if field.is_required()
                else f"by default ``{field.get_default(call_default_factory=True)!r}``"
            )
            yield from ("", f"``{name}``, {default}", f"    {_text(field.description)}")
    yield ""


def _help_of(name: str) -> str:
    """The help of a field that is also a metric."""
    path, _, field = name.rpartition(".")
    module, _, owner = path.rpartition(".")
    try:
        hints = get_type_hints(getattr(sys.modules[module], owner), include_extras=True)
    except (AttributeError, KeyError, NameError, TypeError):  # no class, or names that only type checkers import
        return ""
    return "".join(getattr(each, "help", "") for each in getattr(hints.get(field), "__metadata__", ()))


def signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, arguments: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """None of a protocol, which nobody makes, and of a class whose fields are listed. A default without a text that is
    Python becomes an ellipsis: Sphinx could not parse the signature."""
    if isinstance(value, type) and (getattr(value, "_is_protocol", False) or _lists_fields(value, arguments)):
        return "", None
    return None if arguments is None else (_NO_TEXT.sub("...", arguments), returns)


def shorten(app: Sphinx, document: nodes.document) -> None:
    """Show the types of fields that are also metrics without what the metrics say."""
    for node in document.findall(desc_annotation):
        found = _METRIC.fullmatch(node.astext())
        if found is not None:
            node.children = []
            node += nodes.Text(found["before"] + found["type"])


def _lists_fields(value: type, arguments: str | None) -> bool:
    return issubclass(value, BaseModel) or (is_dataclass(value) and "MetricSpec(" in (arguments or ""))


def shows_every_field(value: type) -> bool:
    """A class whose attributes need no docstring to be worth a line."""
    return issubclass(value, Enum) or is_dataclass(value)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", signature)
    app.connect("doctree-read", shorten)
    return {"parallel_read_safe": True}
