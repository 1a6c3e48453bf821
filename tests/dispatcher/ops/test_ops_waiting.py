"""What waits for its time: scheduled posts, and events that are tried again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter, Retry
from dispatcher.ops import ops_app

from ...kit import until
from ..cli.letters import Order, OrderEvent
from ..pages.letter_pages import Visitor, text_of
from .client import Client, Hanging, Job, JobEvent

HOUR = Retry(attempts=3, delay_s=3600, max_delay_s=3600, jitter=0)
HOUR_BY_KEY = Retry(attempts=3, delay_s=3600, max_delay_s=3600, jitter=0, ordered_by_key=True)


def fail_here(event: Any) -> None:
    raise ValueError(f"here with {event.entity}")


# -- retrying ----------------------------------------------------------------------------------------------------------


def test_events_that_retry_are_listed_with_attempt_error_due_and_what_they_hold_back(client: Client) -> None:
    dispatcher = AsyncDispatcher(name="shop")
    dispatcher.register(Order, fail_here, on_error=HOUR_BY_KEY)
    with dispatcher:
        for entity in ("o1", "o1", "o1", "o2"):
            assert dispatcher.post(OrderEvent(Order.PLACED, entity))
        until(lambda: len(client.json("/dispatchers/shop/retrying")["items"]) == 2)
        until(lambda: dispatcher.stats().retrying == 4)

        first, second = client.json("/dispatchers/shop/retrying")["items"]
        page = text_of(Visitor(ops_app()).page("/scheduled"))
        dispatcher.set_drain_events_on_stop(False)

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
    assert "Order. PLACED of o1 2 ValueError: here with o1 2" in page
    assert "4 events in all" in page
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


# -- scheduled ---------------------------------------------------------------------------------------------------------


def test_a_periodic_post_has_its_last_time(client: Client, central: Hanging) -> None:
    central.dispatcher.post_every(3600, JobEvent(Job.START), first=0, key="hourly")

    def listed() -> list[Any]:  # while it fires, it is not
        return [each for each in client.json("/dispatchers/central/scheduled")["items"] if each["last"]]

    until(listed)
    [hourly] = listed()
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
