"""/scheduled: what is due, by key, and what is tried again."""

from __future__ import annotations

import contextlib

import pytest

from dispatcher.ops import OpsConfig, ops_app

from ...kit.scenarios import play
from ..ops.client import Hanging, Job, JobEvent
from .letter_pages import PageStage, Visitor, links

pytestmark = pytest.mark.usefixtures("alone")

HOSTILE = "<script>alert(1)</script>\"'>\n&key=other#\u202e"


@pytest.fixture
def browser() -> Visitor:
    return Visitor(ops_app(OpsConfig(control=True)), "admin")


SCENARIOS = {
    "posts are listed with key, time and rule": "cron daily 0 7 * * * | every 3600 hourly | after 7200 soon o1 "
    "| sees /scheduled daily_Job._START_0_7_*_*_*_UTC hourly_Job._START_every_1_h soon_Job._START_of_o1_once "
    "| lacks /scheduled Tried_again",
    "keys are found by their beginning": "after 9 reminder-1 | after 9 reminder-2 | after 9 daily "
    "| sees /scheduled?prefix=rem reminder-1 reminder-2 | lacks /scheduled?prefix=rem daily",
    "a daemon with nothing to wait for says so": "drained "
    "| sees /scheduled Nothing_is_scheduled,_and_no_event_is_tried_again.",
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_the_page_shows(browser: Visitor, script: str) -> None:
    with contextlib.closing(PageStage(browser)) as stage:
        play(stage, script)


def test_only_what_has_a_key_can_be_cancelled_and_only_by_administrators(browser: Visitor, central: Hanging) -> None:
    central.dispatcher.post_after(3600, JobEvent(Job.START), key="one")
    central.dispatcher.post_after(7200, JobEvent(Job.WAIT))

    assert links(browser.page("/scheduled"), "/changes") == ["/changes/cancel?dispatcher=central&key=one"]
    for other in (Visitor(ops_app(), "admin"), Visitor(ops_app(OpsConfig(control=True)), "view")):
        assert "/changes" not in other.page("/scheduled")


def test_one_dispatcher_is_shown_in_pages(browser: Visitor, central: Hanging) -> None:
    for number in range(103):
        central.dispatcher.post_after(3600 + number, JobEvent(Job.START), key=f"key-{number:03}")

    overview = browser.page("/scheduled")
    [more] = links(overview, "after=")
    first = browser.page("/scheduled?dispatcher=central")
    [following] = links(first, "after=")
    second = browser.page(following)

    assert (overview.count("/changes/cancel"), first.count("/changes/cancel")) == (20, 100)
    assert more == "/scheduled?dispatcher=central&after=20"
    assert second.count("/changes/cancel") == 3
    assert "key-102" in second


def test_a_hostile_key_is_shown_as_text_and_can_be_cancelled(browser: Visitor, central: Hanging) -> None:
    hostile = central.dispatcher.post_after(3600, JobEvent(Job.START), key=HOSTILE)
    kept = central.dispatcher.post_after(3600, JobEvent(Job.START), key="other")
    page = browser.page("/scheduled")

    [link] = [each for each in links(page, "/changes/cancel") if "script" in each]
    question = browser.page(link)
    answer = browser.answer_question(link)

    assert "<script>alert" not in page + question
    assert answer.status_code == 303
    assert (hostile.is_done(), kept.is_done()) == (True, False)


@pytest.mark.parametrize(("path", "status"), [("/scheduled?dispatcher=nobody", 404), ("/scheduled?after=x", 400)])
def test_an_address_of_nothing_is_a_page_that_says_so(browser: Visitor, path: str, status: int) -> None:
    assert '<main id="content">' in browser.page(path, status)
