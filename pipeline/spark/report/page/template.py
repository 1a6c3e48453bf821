"""The page of a report or a sweep: one HTML document that holds all it shows, and needs no network.

A content security policy tells the browser so: it runs two scripts, known by their hashes, Plotly's and the page's
own, and loads nothing. No name from a journal can become a script, even if it became markup.
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
    """The page as text, to be written in UTF-8. `why_empty`: said of a plot that has nothing to show."""
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
        # Browsers hash a script as they have parsed it, where any end of line is one \n.
        plotly_js=Markup(get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n")),
    )


def _text(name: str) -> str:
    return resources.files("pipeline.spark.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash_source(script: str) -> Markup:
    """The script as a source in a content security policy."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return Markup("'sha256-{}'").format(base64.b64encode(digest).decode("ascii"))
