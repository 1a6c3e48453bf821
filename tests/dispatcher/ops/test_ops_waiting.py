"""Groups of failures, and what waits for its time: scheduled posts, and events that are tried again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter, Retry
from dispatcher.ops import ops_app

from ...kit import Numbered, until
from ..cli.letters import Order, OrderEvent
from .client import WAIT_S, Client, Hanging, Job, JobEvent, hanging

HOUR = Retry(attempts=3, delay_s=3600, max_delay_s=3600, jitter=0)
HOUR_BY_KEY = Retry(attempts=3, delay_s=3600, max_delay_s=3600, jitter=0, ordered_by_key=True)


@pytest.fixture
def client() -> Client:
    return Client(ops_app())


def fail_here(event: Any) -> None:
    raise ValueError(f"here with {event.entity}")


# -- groups of failures ------------------------------------------------------------------------------------------------


def test_a_user_who_may_not_see_everything_gets_groups_without_messages() -> None:
    async def nothing(request: object) -> Any:
        return lambda entity: False

    with hanging() as central:
        central.post(Job.FAIL, "secret")
        assert central.dispatcher.await_drained(WAIT_S)

        answer = Client(ops_app(may_see=nothing)).get("/dispatchers/central/failures/groups")

    assert "secret" not in answer.text
    assert answer.json()["items"][0]["failed"] == 1


# -- retrying ----------------------------------------------------------------------------------------------------------


def test_events_that_retry_are_listed_with_attempt_error_due_and_what_they_hold_back(client: Client) -> None:
    dispatcher = AsyncDispatcher(name="shop")
    dispatcher.register(Order, fail_here, on_error=HOUR_BY_KEY)
    with dispatcher:
        for entity in ("o1", "o1", "o1", "o2"):
            assert dispatcher.post(OrderEvent(Order.PLACED, entity))
        until(lambda: len(client.json("/dispatchers/shop/retrying")["items"]) == 2)
        until(lambda: dispatcher.stats().retrying == 4)

        found = client.json("/dispatchers/shop/retrying", limit=1)
        rest = client.json("/dispatchers/shop/retrying", limit=1, after=found["next"])
        dispatcher.set_drain_events_on_stop(False)

    [first], [second] = found["items"], rest["items"]
    assert rest["next"] is None
    assert first | {"due": 0} == {
        "event_class": "Order",
        "event_type": "PLACED",
        "entity": "o1",
        "attempt": 2,
        "due": 0,
        "error_class": "ValueError",
        "message": "here with o1",
        "held_back": 2,
    }
    assert (second["entity"], second["held_back"]) == ("o2", 0)
    assert first["due"] <= second["due"]
    assert first["due"] > 1_600_000_000_000


def test_an_attempt_of_an_earlier_run_is_listed_without_its_error(client: Client, tmp_path: Path) -> None:
    def run() -> AsyncDispatcher:
        journal = JournalWriter(tmp_path, JournalConfig(write_ahead=True))
        dispatcher = AsyncDispatcher(name="shop", journal=journal)
        dispatcher.register(Order, fail_here, on_error=HOUR, events=OrderEvent)
        dispatcher.set_drain_events_on_stop(False)
        return dispatcher

    with run() as shop:
        assert shop.post(OrderEvent(Order.PLACED, "o1"))
        until(lambda: len(client.json("/dispatchers/shop/retrying")["items"]) == 1)
    with run() as shop:
        [event] = client.json("/dispatchers/shop/retrying")["items"]

    assert (event["entity"], event["attempt"], event["error_class"], event["message"]) == ("o1", 2, "", "")


def test_users_find_the_retries_of_their_entities_without_messages() -> None:
    async def may_see(request: object) -> Any:
        return lambda entity: entity == "mine"

    client = Client(ops_app(may_see=may_see))
    dispatcher = AsyncDispatcher(name="shop")
    dispatcher.register(Order, fail_here, on_error=HOUR)
    with dispatcher:
        for entity in ("other", "mine"):
            assert dispatcher.post(OrderEvent(Order.PLACED, entity))
        until(lambda: dispatcher.stats().retrying == 2)
        until(lambda: len(client.json("/dispatchers/shop/retrying")["items"]) == 1)

        [event] = client.json("/dispatchers/shop/retrying")["items"]
        dispatcher.set_drain_events_on_stop(False)

    assert (event["entity"], event["error_class"], event["message"]) == ("mine", "ValueError", "")


# -- scheduled ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def central() -> Any:
    with hanging("central") as found:
        yield found


def test_scheduled_posts_are_listed_by_time_with_keys_and_pages(client: Client, central: Hanging) -> None:
    central.dispatcher.post_at(4_000_000_000, Numbered(), key="year-2096")
    central.dispatcher.post_every(cron="0 7 * * *", event=JobEvent(Job.START, "o1"), key="daily")
    central.dispatcher.post_after(7200, JobEvent(Job.START))

    found = client.json("/dispatchers/central/scheduled", limit=2)
    rest = client.json("/dispatchers/central/scheduled", after=found["next"])
    by_key = client.json("/dispatchers/central/scheduled", prefix="dai")

    assert {each["key"] for each in found["items"]} == {"daily", ""}
    assert [each["key"] for each in rest["items"]] == ["year-2096"]
    [daily] = by_key["items"]
    assert (daily["cron"], daily["last"], daily["entity"]) == ("0 7 * * * UTC", None, "o1")


def test_a_periodic_post_has_its_last_time(client: Client, central: Hanging) -> None:
    central.dispatcher.post_every(3600, JobEvent(Job.START), first=0, key="hourly")

    until(lambda: client.json("/dispatchers/central/scheduled")["items"][0]["last"])

    [hourly] = client.json("/dispatchers/central/scheduled")["items"]
    assert hourly["due"] - hourly["last"] == pytest.approx(3_600_000, abs=1000)


def test_a_rhythm_of_an_earlier_run_whose_factory_is_missing_is_listed(client: Client, tmp_path: Path) -> None:
    def run() -> AsyncDispatcher:
        journal = JournalWriter(tmp_path, JournalConfig(write_ahead=True))
        dispatcher = AsyncDispatcher(name="shop", journal=journal)
        dispatcher.register(Order, lambda event: None, events=OrderEvent)
        return dispatcher

    with run() as shop:
        shop.post_every(3600, lambda: OrderEvent(Order.PLACED, "o1"), key="hourly")
    with run() as shop:
        [hourly] = client.json("/dispatchers/shop/scheduled")["items"]
        assert shop.cancel("hourly")
        assert client.json("/dispatchers/shop/scheduled")["items"] == []

    assert (hourly["key"], hourly["event_type"], hourly["every_s"]) == ("hourly", "post_every", 3600)


def test_a_user_who_may_not_see_everything_gets_no_scheduled_posts(central: Hanging) -> None:
    async def mine(request: object) -> Any:
        return lambda entity: entity is not None

    central.dispatcher.post_after(7200, JobEvent(Job.START, "mine"), key="one")

    assert Client(ops_app(may_see=mine)).json("/dispatchers/central/scheduled")["items"] == []
