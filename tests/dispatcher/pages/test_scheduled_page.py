"""/scheduled: what is due, by key, and what is tried again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")
pytest.importorskip("jinja2", reason="the extra web is not installed")

from dispatcher import AsyncDispatcher, Retry
from dispatcher.ops import OpsConfig, ops_app

from ...kit import until
from ..cli.letters import Order, OrderEvent
from ..ops.client import Hanging, Job, JobEvent, hanging
from .letter_pages import Visitor, links, text_of

pytestmark = pytest.mark.usefixtures("alone")

HOSTILE = "<script>alert(1)</script>\"'>\n&key=other#\u202e"


@pytest.fixture
def central() -> Iterator[Hanging]:
    with hanging("central") as found:
        yield found


@pytest.fixture
def browser() -> Visitor:
    return Visitor(ops_app(OpsConfig(control=True)), "admin")


def test_posts_are_listed_with_key_time_and_rule(browser: Visitor, central: Hanging) -> None:
    central.dispatcher.post_every(cron="0 7 * * *", event=JobEvent(Job.START, "o1"), key="daily")
    central.dispatcher.post_every(3600, JobEvent(Job.FAIL), key="hourly")
    central.dispatcher.post_after(7200, JobEvent(Job.WAIT))

    page = text_of(browser.page("/scheduled"))

    assert "daily Job. START of o1 0 7 * * * UTC" in page
    assert "hourly Job. FAIL every 1 h" in page
    assert "Job. WAIT once" in page
    assert "Tried again" not in page


def test_only_what_has_a_key_can_be_cancelled_and_only_by_administrators(browser: Visitor, central: Hanging) -> None:
    central.dispatcher.post_after(3600, JobEvent(Job.START), key="one")
    central.dispatcher.post_after(7200, JobEvent(Job.WAIT))

    assert links(browser.page("/scheduled"), "/changes") == ["/changes/cancel?dispatcher=central&key=one"]
    for other in (Visitor(ops_app(), "admin"), Visitor(ops_app(OpsConfig(control=True)), "view")):
        assert "/changes" not in other.page("/scheduled")


def test_keys_are_found_by_their_beginning(browser: Visitor, central: Hanging) -> None:
    for key in ("reminder-1", "reminder-2", "daily"):
        central.dispatcher.post_after(3600, JobEvent(Job.START), key=key)

    page = text_of(browser.page("/scheduled?prefix=rem"))

    assert ("reminder-1" in page, "reminder-2" in page, "daily" in page) == (True, True, False)


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


def test_what_is_tried_again_says_which_attempt_why_and_what_it_holds_back(browser: Visitor) -> None:
    def fail(event: Any) -> None:
        raise ConnectionError("no route to the stock")

    dispatcher = AsyncDispatcher(name="shop")
    dispatcher.register(Order, fail, on_error=Retry(attempts=3, delay_s=3600, max_delay_s=3600, ordered_by_key=True))
    with dispatcher:
        for _ in range(3):
            assert dispatcher.post(OrderEvent(Order.PLACED, "o1"))
        until(lambda: dispatcher.stats().retrying == 3 and len(dispatcher.view.retrying()) == 1)

        page = text_of(browser.page("/scheduled"))
        dispatcher.set_drain_events_on_stop(False)

    assert "Order. PLACED of o1 2 ConnectionError: no route to the stock 2" in page
    assert "3 events in all" in page


def test_a_daemon_with_nothing_to_wait_for_says_so(browser: Visitor, central: Hanging) -> None:
    assert text_of(browser.page("/scheduled")).endswith("Nothing is scheduled, and no event is tried again.")


def test_a_user_who_may_not_see_everything_sees_how_many_there_are(central: Hanging) -> None:
    async def nothing(request: object) -> Any:
        return lambda entity: False

    central.dispatcher.post_after(3600, JobEvent(Job.START, "secret"), key="secret")

    page = Visitor(ops_app(may_see=nothing)).page("/scheduled")

    assert "1 scheduled post. You may not see them." in text_of(page)
    assert "secret" not in page


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
