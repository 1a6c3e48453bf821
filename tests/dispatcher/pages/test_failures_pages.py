"""/failures and the pages of dead letters."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from dispatcher import AsyncDispatcher
from dispatcher.ops import OpsConfig, ops_app

from ...kit.journals import flip
from ...kit.scenarios import play
from ..cli.letters import WAIT_S, failing
from ..ops.client import ENTITIES_ONLY
from ..ops.shop import Shop
from .letter_pages import ShopPages, Visitor, links, text_of

pytestmark = pytest.mark.usefixtures("alone")

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e{{ 7*7 }}"
LIST = "/failures/letters?dispatcher=shop"
LETTERS = "/v1/dispatchers/shop/dead-letters"


@pytest.fixture(autouse=True)
def _patient(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages wait for a folder that is read for the first time: on a busy machine it would come with the next update."""
    monkeypatch.setattr("dispatcher.pages.failures._SOON_S", WAIT_S)


def visitor(role: Any = None, may_see: Any = None, **options: Any) -> Visitor:
    return Visitor(ops_app(OpsConfig(**options), may_see=may_see), role)


SCENARIOS = {
    "equal failures are one row with the newest event and its traceback": "place o1 o2 o3 | sees /failures "
    'Order._PLACED_ValueError:_no_stock_The_newest,_of_o3_,_at | html /failures data-label="failures">3</td> '
    "raise_ValueError(&#34;no_stock&#34;)",
    "each folder of dead letters is linked, with its number": "place o1 o2 | html /failures "
    'data-label="in_its_folder">2</td> -> @/failures@/failures/letters /failures/letters?dispatcher=shop',
    "letters are listed newest first, and searched": "place o1 o2 -> "
    "@/failures/letters?dispatcher=shop@/failures/letter? /failures/letter?dispatcher=shop&number=2 "
    "/failures/letter?dispatcher=shop&number=1 ; @/failures/letters?dispatcher=shop&search=o2@/failures/letter? "
    "/failures/letter?dispatcher=shop&number=2",
    "a letter is shown whole": "place o1 | sees /failures/letter?dispatcher=shop&number=1 "
    'ValueError:_no_stock_Traceback_(most_recent_call_last): "entity":_"o1"',
    "an administrator chooses letters by their boxes": "place o1 | html /failures/letters?dispatcher=shop "
    '<input_type="checkbox"_name="letter" -> @/failures/letters?dispatcher=shop@/changes/redeliver '
    "/changes/redeliver",
    "a letter of a class that was not declared is marked, and cannot be redelivered": "other | sees "
    "/failures/letters?dispatcher=shop not_declared -> @/failures/letter?dispatcher=shop&number=1@/changes/redeliver",
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_the_pages_show(shop: Shop, script: str) -> None:
    play(ShopPages(shop, ops_app(OpsConfig(control=True, show_payloads=True))), script)


def test_a_daemon_without_failures_says_so() -> None:
    page = text_of(visitor().page("/failures"))

    assert "No event has failed since the start." in page
    assert "No dispatcher keeps the events that fail for good" in page


def test_a_long_list_goes_on_at_older_letters(shop: Shop) -> None:
    shop.place(*(f"o{number}" for number in range(103)))
    browser = visitor()

    first = browser.page(LIST)
    [older] = links(first, "after=")
    second = browser.page(older)

    assert (first.count("<tr data-key"), second.count("<tr data-key")) == (100, 3)
    assert "103 dead letters in the folder" in text_of(first)
    assert links(second, "after=") == []


def test_hostile_text_is_shown_as_text(shop: Shop) -> None:
    shop.place(HOSTILE)
    browser = visitor("admin", control=True, show_payloads=True)

    pages = [browser.page(path) for path in ("/failures", LIST, "/failures/letter?dispatcher=shop&number=1")]
    pages.append(browser.page("/changes/redeliver?dispatcher=shop&letter=1"))
    pages.append(browser.page(f"{LIST}&search=%22%3E%3Cscript%3E"))

    for page in pages:
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "\u202e" not in page
        assert page.count("<script") == 1  # the site's own
    assert all("alert(1)" in page for page in pages[:4])
    assert all("{{ 7*7 }}" in page for page in pages[:4])


def test_letters_of_no_folder_have_no_list() -> None:
    with failing(None) as shop:
        page = visitor().page(LIST, 404)

    assert shop
    assert "its dead letters are not in a folder" in page


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/failures/letters", 400),
        ("/failures/letters?dispatcher=nobody", 404),
        (f"{LIST}&after=x", 400),
        ("/failures/letter?dispatcher=shop", 400),
        ("/failures/letter?dispatcher=shop&number=17", 404),
        ("/failures/letter?dispatcher=shop&number=x", 400),
    ],
)
def test_an_address_of_nothing_is_a_page_that_says_so(shop: Shop, path: str, status: int) -> None:
    assert '<main id="content">' in visitor().page(path, status)


def test_without_controls_or_their_role_nothing_can_be_chosen(shop: Shop) -> None:
    shop.place("o1")
    paths = ("/failures", LIST, "/failures/letter?dispatcher=shop&number=1")

    in_part = visitor("admin", control=True, may_see=ENTITIES_ONLY)
    for browser in (visitor("admin"), visitor("view", control=True), visitor(control=True), in_part):
        for path in paths:
            page = browser.page(path)
            assert "/changes" not in page
            assert "checkbox" not in page


def test_links_lead_below_the_path_of_the_app_that_has_the_pages(shop: Shop) -> None:
    shop.place("o1")
    app = Starlette(routes=[Mount("/tools/ops", ops_app(OpsConfig(control=True)))])
    browser = Visitor(app, "admin")

    page = browser.page("/tools/ops/failures/letters?dispatcher=shop")

    assert links(page, "/failures/letter?")[0].startswith("/tools/ops/failures/letter?")
    assert links(page, "/changes/redeliver") == ["/tools/ops/changes/redeliver"]


# -- folders that are not as they should be ----------------------------------------------------------------------------


def test_damage_is_told_with_the_letters_that_are_there(shop: Shop, tmp_path: Path) -> None:
    shop.place("o1", "o2")
    [segment] = (tmp_path / "letters").glob(".segment-*")
    flip(segment, segment.read_bytes().index(b'"entity":"o1"'))
    browser = visitor()

    page, found = browser.page(LIST), browser.json(LETTERS)

    assert "hold no intact frame" in page
    assert "hold no intact frame" in found["damage"][0]
    assert (page.count("<tr data-key"), [each["entity"] for each in found["items"]]) == (1, ["o2"])


def test_a_folder_that_is_gone_or_none_is_an_error_in_one_line_and_leaves_the_other_failures(
    shop: Shop, tmp_path: Path
) -> None:
    shop.place("o1")
    browser, folder = visitor(), tmp_path / "letters"
    away = folder.rename(tmp_path / "away")

    page = text_of(browser.page("/failures"))

    for said in ("not readable", "no such journal folder", "no stock"):
        assert said in page
    assert '<main id="content">' in browser.page(LIST, 503)
    assert browser.error(LETTERS)[0] == 503
    folder.write_text("not a folder")
    assert browser.error(LETTERS)[0] == 503
    folder.unlink()
    away.rename(folder)
    assert browser.json(LETTERS)["total"] == 1


def test_many_folders_are_read_for_one_page(tmp_path: Path) -> None:
    shops = [AsyncDispatcher(name=f"shop-{number}", dead_letters=tmp_path / f"{number}") for number in range(20)]
    browser = visitor()
    with contextlib.ExitStack() as started:
        for shop in shops:
            started.enter_context(shop)

        page = browser.page("/failures")

    assert page.count('data-label="in its folder">0</td>') == 20
    assert "not readable" not in page
