"""HTML pages: templates that escape everything, and links that cannot run scripts. Needs the extra `web`."""

from __future__ import annotations

from urllib.parse import urlsplit

from jinja2 import BaseLoader, DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape

LOGIN = "login.html"

_TEMPLATES = {
    LOGIN: """<!DOCTYPE html>
<html lang="en" class="live">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }} - {{ site }}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{{ sheet }}">
</head>
<body>
<nav aria-label="Main"><div><a class="brand" href="/">{{ site }}</a></div></nav>
<header><h1>{{ title }}</h1></header>
<main id="content"><section class="panel">
{% if problem %}<p class="alert" id="problem" role="alert">{{ problem }}</p>{% endif %}
{% if user is not none %}
<p>You are logged in as {{ user }}.</p>
<form method="post" action="/logout"><div class="buttons"><button>Log out</button></div></form>
{% else %}
<form method="post" action="/login">
<input type="hidden" name="next" value="{{ next }}">
<div class="filters"><label class="grow">Token
<input type="password" name="token" autocomplete="off" autofocus required
{%- if problem %} aria-invalid="true" aria-describedby="problem"{% endif %}></label></div>
<div class="buttons"><button>Log in</button></div>
</form>
{% endif %}
</section></main>
</body>
</html>
"""
}


def environment(loader: BaseLoader | None = None) -> Environment:
    """Templates with autoescape and the filter `external_link`. An unknown name in a template raises."""
    made = Environment(loader=loader or DictLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined)
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
