"""The forms of the pages: each asks first, changes what it has named, and tells what became of it."""

from __future__ import annotations

import logging
import re
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from dispatcher import DeadLetters, ServiceState
from dispatcher.ops import OpsConfig, OpsDoor, ops_app
from dispatcher.web import WebConfig

from ...kit import until
from ...kit.scenarios import play
from ..ops.client import ENTITIES_ONLY, WAIT_S, hanging
from ..ops.shop import Shop
from .letter_pages import OWN_PAGE, ShopPages, Visitor, text_of

pytestmark = pytest.mark.usefixtures("alone")

QUESTIONS = [
    "/changes/redeliver?dispatcher=shop&letter=1",
    "/changes/discard?dispatcher=shop&letter=1",
    "/changes/cancel?dispatcher=shop&key=daily",
    "/changes/stop?dispatcher=shop",
]


@pytest.fixture
def browser() -> Visitor:
    return Visitor(ops_app(OpsConfig(control=True)), "admin")


SCENARIOS = {
    "a selection is redelivered and told letter by letter": "place o1 o2 again | mend | sees "
    "/changes/redeliver?dispatcher=shop&letter=1&letter=3 2_dead_letters_of_shop_will_be_posted_to_it_again "
    "3_Order.PLACED_of_again:_ValueError:_no_stock_1_Order.PLACED_of_o1:_ValueError:_no_stock | ask "
    "/changes/redeliver?dispatcher=shop&letter=1&letter=3 | go | told By_tester 1_handled "
    "3_failed_again_ValueError:_no_stock -> handled o1",
    "letters are discarded after the question and not before": "place o1 o2 | sees "
    "/changes/discard?dispatcher=shop&letter=2 1_dead_letter_of_shop_will_be_removed_from_the_folder_for_good -> "
    "letters o1 o2 | ask /changes/discard?dispatcher=shop&letter=2 | told 2_discarded -> letters o1",
    "all letters that match a search can be chosen": "place o1 p1 o2 | ask "
    "/changes/discard?dispatcher=shop&search=p1&matching=1 -> letters o1 o2",
    "nothing chosen is said, and has no button": "place o1 | mute /changes/redeliver?dispatcher=shop | html "
    "/changes/redeliver?dispatcher=shop No_dead_letter_is_chosen | mute /changes/redeliver?dispatcher=shop&letter=17 "
    "| html /changes/redeliver?dispatcher=shop&letter=17 No_dead_letter_is_chosen",
    "changes are listed": "sees /changes No_change_was_made | place o1 | ask "
    "/changes/discard?dispatcher=shop&letter=1 | sees /changes tester_discard_shop_1",
    "a scheduled post is cancelled": "schedule daily kept | ask /changes/cancel?dispatcher=shop&key=daily | told "
    "daily_cancelled -> scheduled kept",
    "the page of a dispatcher leads to its stop": "mend -> @/dispatcher/shop@/changes /changes/stop?dispatcher=shop",
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_an_administrator_is_asked_and_told(shop: Shop, script: str) -> None:
    play(ShopPages(shop, ops_app(OpsConfig(control=True))), script)


def test_of_a_dispatcher_that_has_stopped_nothing_is_asked_and_nothing_changed(browser: Visitor, shop: Shop) -> None:
    shop.place("o1")
    fields = [("dispatcher", "shop"), ("journal", shop.journal), ("letter", "1")]
    shop.dispatcher.stop()

    pages = [browser.page(path) for path in QUESTIONS]
    answer = browser.send_form("/changes/redeliver", fields)

    assert all("shop is STOPPED" in page and "<button" not in page for page in pages)

    assert (answer.status_code, shop.letters()) == (409, ["o1"])
    assert "shop: is STOPPED" in answer.text


def test_a_dispatcher_is_stopped_and_its_end_is_told(browser: Visitor) -> None:
    with hanging("shop") as shop, hanging("other") as other:
        shop.hang()
        question = text_of(browser.page("/changes/stop?dispatcher=shop"))
        told = browser.answer_question("/changes/stop?dispatcher=shop").headers["location"]

        assert "shop will reject posts from now on" in question
        until(lambda: shop.dispatcher.state is ServiceState.STOPPED)
        assert "shop stopping" in text_of(browser.page(told))
        shop.release.set()
        assert shop.dispatcher.wait_for_service_to_stop(WAIT_S)
        assert "shop stopped" in text_of(browser.page(told))
        assert other.dispatcher.in_state(ServiceState.STARTED)


# -- who may, and from where -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("control", "role", "may_see", "reason"),
    [
        (False, "admin", None, "controls are switched off; set ops.control: true"),
        (True, "view", None, "role admin is required"),
        (True, "user", None, "role admin is required"),
        (True, None, None, "role admin is required"),
        (True, "admin", ENTITIES_ONLY, "changes are for administrators who may see everything"),
    ],
)
def test_questions_and_forms_need_controls_and_an_administrator(
    shop: Shop, control: bool, role: str | None, may_see: Any, reason: str
) -> None:
    shop.place("o1")
    fields = [("dispatcher", "shop"), ("letter", "1"), ("journal", shop.journal)]
    visitor = Visitor(ops_app(OpsConfig(control=control), may_see=may_see), role)

    assert [visitor.get(path).status_code for path in (*QUESTIONS, "/changes", "/changes/1")] == [403] * 6
    refused = visitor.send_form("/changes/discard", fields)
    assert (refused.status_code, reason in refused.text, "<h1>" in refused.text) == (403, True, True)
    assert shop.letters() == ["o1"]


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "same-origin", "origin": "http://evil.example"},
        {"sec-fetch-site": "", "origin": "null"},
        {"sec-fetch-site": "", "origin": "http://elsewhere"},
        {"sec-fetch-site": ""},
    ],
)
def test_a_form_of_another_web_site_changes_nothing(browser: Visitor, shop: Shop, headers: dict[str, str]) -> None:
    shop.place("o1")
    fields = [("dispatcher", "shop"), ("letter", "1"), ("journal", shop.journal), ("key", "daily")]
    paths = [each.partition("?")[0] for each in QUESTIONS]

    refused = [browser.send_form(path, fields, **headers) for path in paths]

    assert [each.status_code for each in refused] == [403] * 4
    assert all("neither Origin nor Sec-Fetch-Site says" in each.text for each in refused)
    assert shop.letters() == ["o1"]
    assert shop.dispatcher.in_state(ServiceState.STARTED)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [("dispatcher", "nobody"), ("letter", "1"), ("journal", "x")],
        [("dispatcher", "shop"), ("letter", "x"), ("journal", "x")],
        [("dispatcher", "shop"), ("letter", "1")],
        [("dispatcher", "shop"), *[("letter", "1")] * 501, ("journal", "x")],
        [("dispatcher", "shop"), *[("letter", "1")] * 1001],
        [("dispatcher", "shop")],
    ],
)
def test_a_form_that_no_page_sends_is_refused(browser: Visitor, shop: Shop, fields: list[tuple[str, str]]) -> None:
    shop.place("o1")

    assert browser.send_form("/changes/discard", fields).status_code in (400, 404, 409)
    assert shop.letters() == ["o1"]


def test_a_form_leads_on_below_the_path_of_the_app_that_has_the_pages(shop: Shop) -> None:
    shop.place("o1")
    app = Starlette(routes=[Mount("/tools/ops", ops_app(OpsConfig(control=True)))])
    fields = [("dispatcher", "shop"), ("letter", "1"), ("journal", shop.journal)]

    answer = Visitor(app, "admin").send_form("/tools/ops/changes/discard", fields)

    assert answer.status_code == 303
    assert re.fullmatch(r"/tools/ops/changes/\d+", answer.headers["location"])


def test_each_form_leaves_an_audit_line_also_when_it_is_refused(
    browser: Visitor, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.place("o1")
    journal = shop.journal
    fields = [("dispatcher", "shop"), ("letter", "1"), ("journal", journal)]
    with caplog.at_level(logging.INFO, "dispatcher.audit"):
        browser.send_form("/changes/discard", fields)
        browser.send_form("/changes/discard", [("dispatcher", "nobody"), *fields[1:]])
        browser.send_form("/changes/discard", fields, **{"sec-fetch-site": "cross-site"})

    lines = [record.getMessage().split("\t") for record in caplog.records if record.name == "dispatcher.audit"]
    assert [(line[0], line[2], line[3], line[4]) for line in lines[:2]] == [
        ("USER=tester", "OPERATION=discard 1 dead letter: 1", "TARGET=shop", "RESULT=SUCCESS"),
        ("USER=tester", "OPERATION=discard dead letters", "TARGET=nobody", "RESULT=FAILURE"),
    ]
    assert lines[2][4] == "RESULT=FAILURE"


def test_a_door_takes_the_forms_of_its_own_pages_only(shop: Shop) -> None:
    shop.place("o1")
    web = WebConfig(port=0, anonymous_role="admin")
    door = OpsDoor(OpsConfig(control=True), web, name="shop")
    with door:
        base = str(door.url).partition("/ops")[0]
        page = httpx.get(f"{base}/changes/discard?dispatcher=shop&letter=1").text
        fields = dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page))
        foreign = httpx.post(f"{base}/changes/discard", data=fields, headers={"origin": "http://evil.example"})
        unsaid = httpx.post(f"{base}/changes/discard", data=fields)
        before = DeadLetters(shop.folder).count()
        own = httpx.post(f"{base}/changes/discard", data=fields, headers={**OWN_PAGE, "origin": base})

    assert (foreign.status_code, unsaid.status_code, before) == (403, 403, 1)
    assert (own.status_code, shop.letters()) == (303, [])
