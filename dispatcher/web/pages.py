"""HTML pages: templates that escape everything, and links that cannot run scripts. Needs the extra `web`."""

from __future__ import annotations

from urllib.parse import urlsplit

from jinja2 import BaseLoader, Environment, StrictUndefined
from markupsafe import Markup, escape


def environment(loader: BaseLoader | None = None) -> Environment:
    """Templates with autoescape and the filter `external_link`. An unknown name in a template raises."""
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    made.filters["external_link"] = external_link
    return made


def external_link(url: str, text: str | None = None) -> Markup:
    """A link to a URL that an application gave; only its text if it is neither http nor https."""
    shown = escape(text if text is not None else url)
    if not _is_web_address(url):
        return shown
    return Markup('<a href="{}" rel="noopener noreferrer">{}</a>').format(url, shown)


def _is_web_address(url: str) -> bool:
    # Browsers drop control characters and spaces at the ends before they look at the scheme.
    if not url.isprintable() or url != url.strip():
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)
