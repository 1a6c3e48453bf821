"""Pages from templates: HTML documents that hold all they show, their scripts included."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs


def render(package: str, template: str, **values: Any) -> str:
    """A page of the template in that package, with Plotly and the script that sorts and prints tables and plots."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters["hash_source"] = _hash_source
    return environment.from_string(_text(package, template)).render(
        tables_script=Markup(_text(__package__, "tables.js")),
        # Browsers hash a script as they have parsed it, where any end of line is one \n.
        plotly_js=Markup(get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n")),
        **values,
    )


def _text(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _hash_source(script: str) -> Markup:
    """The script as a source in a content security policy."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return Markup("'sha256-{}'").format(base64.b64encode(digest).decode("ascii"))
