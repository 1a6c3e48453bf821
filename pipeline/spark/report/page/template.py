"""The page of a report or a sweep: one self-contained HTML document that needs no network.

A content security policy allows two scripts by their hashes, Plotly's and the page's own, and forbids loading anything.
So a name from a journal cannot run as a script, even if it ended up as markup.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from pipeline.spark.report.page.page_views import Figure, Section


def render(
    title: str,
    subtitle: str,
    figures: Sequence[Figure],
    sections: Sequence[Section],
    *,
    damage: Sequence[str] = (),
    damage_left_out: str = "",
    why_empty: str = "",
) -> str:
    """Render the page as text, to be written in UTF-8. `why_empty`: shown in place of an empty plot."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["hash_source"] = _hash_source
    return environment.from_string(_text("page.html")).render(
        title=title,
        subtitle=subtitle,
        figures=figures,
        sections=sections,
        damage=damage,
        damage_left_out=damage_left_out,
        why_empty=why_empty,
        page_script=Markup(_text("page.js")),
        # Browsers normalize line ends to \n before they hash a script.
        plotly_js=Markup(get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n")),
    )


def _text(name: str) -> str:
    return resources.files("pipeline.spark.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash_source(script: str) -> Markup:
    """The script's hash as a source in a content security policy."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return Markup("'sha256-{}'").format(base64.b64encode(digest).decode("ascii"))
