"""A client of the pages, which sends forms as a browser would, and a shop whose events fail."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import urlencode

import httpx

from ..ops.client import Client
from ..ops.stage import OpsStage

OWN_PAGE = {"sec-fetch-site": "same-origin", "content-type": "application/x-www-form-urlencoded"}


class Visitor(Client):
    """A browser without JavaScript."""

    def __init__(self, app: Any, role: Any = None, prefix: str = "") -> None:
        super().__init__(app, role, prefix)

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Of a path with its query, which httpx drops where it is given parameters."""
        return self.request("GET", path, headers=headers)

    def page(self, path: str, status: int = 200) -> str:
        response = self.get(path)
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        return response.text

    def send_form(self, path: str, fields: list[tuple[str, str]], **headers: str) -> httpx.Response:
        return self.request("POST", path, content=urlencode(fields), headers={**OWN_PAGE, **headers})

    def answer_question(self, path: str) -> httpx.Response:
        """Press the button of the form on a page that asks."""
        page = self.page(path)
        [(action, form)] = re.findall(r'<form method="post" action="([^"]*)">(.*?)</form>', page, re.DOTALL)
        assert "<button" in form
        fields = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form)
        return self.send_form(unescape(action), [(unescape(name), unescape(value)) for name, value in fields])


def text_of(page: str) -> str:
    """What the page's main part shows, in one line."""
    main = page.partition('<main id="content">')[2].partition("</main>")[0]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", main)).split())


def links(page: str, containing: str) -> list[str]:
    return [unescape(each) for each in re.findall(r'(?:href|formaction|action)="([^"]*)"', page) if containing in each]


class PageStage(OpsStage):
    """The stage of scenarios about pages: `sees /failures A_text` and `lacks`, in what the page shows, in one line."""

    def __init__(self, visitor: Visitor) -> None:
        super().__init__(visitor)
        self._visitor = visitor

    def play(self, verb: str, *words: str) -> None:
        if verb in ("sees", "lacks"):
            shown = text_of(self._visitor.page(words[0])).replace(" ", "_")
            found = [text for text in words[1:] if text in shown]
            assert found == (list(words[1:]) if verb == "sees" else []), shown
        else:
            super().play(verb, *words)
