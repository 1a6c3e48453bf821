"""A client of the pages, which sends forms as a browser would, and a shop whose events fail."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import unescape
from typing import Any
from urllib.parse import urlencode

import httpx

from ..ops.client import Client
from ..ops.shop import Shop, ShopStage
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


def play_page(visitor: Visitor, verb: str, path: str, *texts: str) -> bool:
    """`sees PATH TEXT`, `lacks`: in what the page shows, in one line; `html`: in its source. Returns if it is one."""
    if verb not in ("sees", "lacks", "html"):
        return False
    page = visitor.page(path)
    shown = (page if verb == "html" else text_of(page)).replace(" ", "_")
    assert [text for text in texts if text in shown] == ([] if verb == "lacks" else list(texts)), shown
    return True


class PageStage(OpsStage):
    """The stage of scenarios about pages of a dispatcher."""

    def __init__(self, visitor: Visitor) -> None:
        super().__init__(visitor)
        self._visitor = visitor

    def play(self, verb: str, *words: str) -> None:
        if not (words and play_page(self._visitor, verb, *words)):
            super().play(verb, *words)


class ShopPages(ShopStage):
    """The stage of scenarios about the pages of a shop's letters. `ask PATH` presses the button of a question.

    `told` is seen on the page of the change that was made. A look `@PATH@PART` is at the links of a page with the part.
    """

    def __init__(self, shop: Shop, app: Any) -> None:
        super().__init__(shop, Client(app, "admin"))
        self._visitor = Visitor(app, "admin")
        self._made = ""

    def play(self, verb: str, *words: str) -> None:
        if verb == "ask":
            answer = self._visitor.answer_question(words[0])
            assert answer.status_code == 303, answer.text
            self._made = answer.headers["location"]
        elif verb == "told":
            play_page(self._visitor, "sees", self._made, *words)
        elif verb == "mute":
            assert "<button" not in self._visitor.page(words[0])
        elif not (words and play_page(self._visitor, verb, *words)):
            super().play(verb, *words)

    def look(self, what: str) -> Iterable[object]:
        if not what.startswith("@"):
            return super().look(what)
        _, path, part = what.split("@")
        return links(self._visitor.page(path), part)
