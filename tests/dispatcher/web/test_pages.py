"""Templates escape everything, and links lead to web pages only."""

from __future__ import annotations

import pytest

pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'central-dispatcher[web]'")

from jinja2 import DictLoader, UndefinedError

from dispatcher.web import environment


def external_link(url: str, text: str | None = None) -> str:
    return environment().from_string("{{ url|external_link(text) }}").render(url=url, text=text)


def test_names_are_escaped() -> None:
    pages = environment(DictLoader({"page.html": '<p title="{{ name }}">{{ name }}</p>'}))

    page = pages.get_template("page.html").render(name='"><script>alert(1)</script>')

    assert (
        page == '<p title="&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;">'
        "&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;</p>"
    )


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        environment().from_string("{{ gone }}").render()


@pytest.mark.parametrize("url", ["http://a.example/x?y=1&z=2", "https://a.example", "HTTPS://a.example"])
def test_a_web_address_becomes_a_link_that_tells_nothing_about_us(url: str) -> None:
    shown = url.replace("&", "&amp;")

    assert external_link(url, "logs") == f'<a href="{shown}" rel="noopener noreferrer">logs</a>'


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "JavaScript:alert(1)",
        " javascript:alert(1)",
        "java\nscript:alert(1)",
        "data:text/html,<script>alert(1)</script>",
        "file:///etc/passwd",
        "ftp://a.example",
        "//a.example",
        "/path",
        "http:",
        "http://[",
        " http://a.example",
        "http://a.example/\n",
        "N/A",
        "",
    ],
)
def test_anything_else_is_text(url: str) -> None:
    assert "<" not in external_link(url)
    assert external_link(url, "<b>") == "&lt;b&gt;"


def test_a_link_cannot_leave_its_attribute() -> None:
    link = external_link('http://a.example/" onclick="alert(1)', "<b>")

    assert link == '<a href="http://a.example/&#34; onclick=&#34;alert(1)" rel="noopener noreferrer">&lt;b&gt;</a>'
