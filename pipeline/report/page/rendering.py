"""Renders the page of a report or of a sweep from its parts.

The page is one self-contained HTML document that needs no network, and no script to be read: its plots are SVG, and its
script only sorts tables and shows tooltips sooner. A content security policy allows the page's own script and its own
style sheet by their hashes, and forbids everything else. So a name from a journal cannot run as a script, even if it
ended up as markup.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from pipeline.report.page.page_views import DamageView, Figure, Section


class _Assets(NamedTuple):
    """What all pages share. `style_hash` and `script_hash`: sources in a content security policy."""

    template: Template
    style_sheet: Markup
    script: Markup
    style_hash: Markup
    script_hash: Markup


def render(
    title: str,
    subtitle: str,
    figures: Sequence[Figure],
    sections: Sequence[Section],
    *,
    damage: Sequence[DamageView] = (),
    is_incomplete: bool = False,
    reload_s: int | None = None,
) -> str:
    """Render the page as text, to be written in UTF-8.

    `damage`: what cannot be read of the data. `is_incomplete`: the headline figures lack some of it. `reload_s`: a
    browser loads the page again this many seconds after it has loaded it; None: never.
    """
    assets = _assets()
    return assets.template.render(
        title=title,
        subtitle=subtitle,
        figures=figures,
        sections=sections,
        damage=damage,
        is_incomplete=is_incomplete,
        reload_s=reload_s,
        assets=assets,
    )


@functools.cache
def _assets() -> _Assets:
    """Read and compiled once in a process: `--follow` renders a page every few seconds."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    shared = resources.files("dispatcher.pages").joinpath("static/style.css").read_text(encoding="utf-8")
    style_sheet, script = f"\n{shared}\n{_text('page.css')}", _text("page.js")
    template = environment.from_string(_text("page.html"))
    return _Assets(template, Markup(style_sheet), Markup(script), _hash_source(style_sheet), _hash_source(script))


def _text(name: str) -> str:
    text = resources.files("pipeline.report.page").joinpath(name).read_text(encoding="utf-8")
    # Browsers normalize line ends to \n before they hash a script or a style sheet.
    return text.replace("\r\n", "\n")


def _hash_source(text: str) -> Markup:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return Markup("'sha256-{}'").format(base64.b64encode(digest).decode("ascii"))
