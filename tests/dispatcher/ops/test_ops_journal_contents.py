"""What /journal, /journal/check and /journal/outstanding say, beside the writer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

import pytest

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter
from dispatcher.ops.journal_contents import check_journal, outstanding_events
from dispatcher.ops.journals import ScanDeadline
from dispatcher.web.plain_answers import Refusal

from ...journal_rows import begin, end
from ...kit import until
from .client import WAIT_S, Client

NS_PER_S = 1_000_000_000


class Order(Enum):
    PLACED = auto()
    HANG = auto()


@dataclass
class OrderEvent:
    type: Order
    entity: str


@dataclass
class Shop:
    """A dispatcher in write-ahead mode, whose handler hangs at HANG until `release` is set."""

    dispatcher: AsyncDispatcher
    path: Path
    entered: threading.Event
    release: threading.Event

    def post(self, entity: str, type: Order = Order.PLACED) -> None:
        assert self.dispatcher.post(OrderEvent(type, entity))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    journal = JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True))
    found = Shop(AsyncDispatcher(name="shop", journal=journal), journal.path, threading.Event(), threading.Event())

    def handle(event: OrderEvent) -> None:
        if event.type is Order.HANG:
            found.entered.set()
            found.release.wait(WAIT_S)

    found.dispatcher.register(Order, handle, events=OrderEvent)
    with found.dispatcher:
        try:
            yield found
        finally:
            found.release.set()


def write(path: Path, events: int) -> JournalWriter:
    """A journal of small segments, whose last one is open."""
    writer = JournalWriter(path, JournalConfig(segment_bytes=1024, buffer_rows=5))
    for number in range(1, events + 1):
        begin(writer, number * NS_PER_S)
        end(writer, "central", "Order", "PLACED", "handled", entity=f"order_{number}")
    writer.flush()
    return writer


def test_a_journal_says_what_its_segments_hold_newest_first(client: Client, tmp_path: Path) -> None:
    writer = write(tmp_path / "journal", 100)
    dispatcher = AsyncDispatcher(name="central", journal=writer)

    found = client.json("/journal")

    newest, oldest = found["segments"][0], found["segments"][-1]
    assert (found["dispatcher"], found["path"], found["write_ahead"]) == ("central", str(writer.path), False)
    assert (newest["is_open"], newest["number"]) == (True, found["segments_total"])
    assert (oldest["number"], oldest["first_seq"], oldest["since"]) == (1, 1, 1000)
    assert sum(each["bytes"] for each in found["segments"]) == found["bytes"]
    assert (found["problems"], found["outstanding"], dispatcher.name) == ([], None, "central")
    writer.close()


def test_a_journal_names_missing_segments_and_damaged_ends(client: Client, tmp_path: Path) -> None:
    writer = write(tmp_path / "journal", 100)
    dispatcher = AsyncDispatcher(name="central", journal=writer)
    first, second, *_ = sorted(writer.path.glob("segment-*.journal"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-7])

    found = client.json("/journal")

    assert found["problems"] == [f"{first.name}: is missing", "segment 2: its end is damaged"]
    assert found["segments"][-1] == {"number": 2, "bytes": second.stat().st_size, "is_open": False, "is_damaged": True}
    assert dispatcher.name == "central"
    writer.close()


def test_a_check_finds_a_changed_byte(client: Client, tmp_path: Path) -> None:
    writer = write(tmp_path / "journal", 100)
    dispatcher = AsyncDispatcher(name="central", journal=writer)
    sound = client.json("/journal/check")
    segment = min(writer.path.glob("segment-*.journal"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)

    damaged = client.json("/journal/check")

    assert (sound["events"], sound["problems"], sound["next"]) == (100, [], None)
    assert damaged["problems_total"] >= 1
    assert segment.name in damaged["problems"][0]
    assert dispatcher.name == "central"
    writer.close()


def test_a_check_that_takes_too_long_says_where_to_go_on(tmp_path: Path) -> None:
    writer = write(tmp_path / "journal", 100)
    events, after, checks = 0, None, 0
    while after is not None or not checks:
        found = check_journal(writer.path, after, ScanDeadline(0))
        events, after, checks = events + found.events, found.next, checks + 1
        assert (found.segments, found.problems) == (1, [])

    assert events == 100
    assert checks > 2
    writer.close()


def test_what_was_accepted_and_not_handled_comes_in_pages_oldest_first(client: Client, shop: Shop) -> None:
    for number in range(300):
        shop.post(f"early_{number}")
    shop.post("stuck", Order.HANG)
    assert shop.entered.wait(WAIT_S)
    for number in range(3):
        shop.post(f"late_{number}")

    until(
        lambda: client.json("/journal/outstanding")["items"][0]["entity"] == "stuck", "the rows of the handled events"
    )

    first = client.json("/journal/outstanding", limit=2)
    second = client.json("/journal/outstanding", limit=2, after=first["next"])

    assert [(each["seq"], each["event_type"], each["entity"]) for each in first["items"]] == [
        (301, "HANG", "stuck"),
        (302, "PLACED", "late_0"),
    ]
    assert [each["entity"] for each in second["items"]] == ["late_1", "late_2"]
    assert (first["next"], second["next"]) == ("302", None)
    assert client.json("/journal")["outstanding"] == 4


def test_a_scan_for_what_is_outstanding_ends_at_its_deadline(shop: Shop) -> None:
    shop.post("early")

    with pytest.raises(Refusal, match="the journal was not read within 0 s"):
        outstanding_events(shop.path, 10, 0, ScanDeadline(0))


def test_what_a_delayed_event_waits_for_is_told(client: Client, shop: Shop) -> None:
    shop.dispatcher.post_after(3600, OrderEvent(Order.PLACED, "later"), key="reminder")

    [found] = client.json("/journal/outstanding")["items"]

    assert (found["entity"], found["key"], found["due"] > found["accepted_at"]) == ("later", "reminder", True)
