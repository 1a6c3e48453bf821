"""What /journal/tail and /journal/state say, beside the writer."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, JournalWriter
from dispatcher.journal import entity_history
from dispatcher.ops import OpsConfig, journals, ops_app

from ...journal_rows import begin, end
from .client import WAIT_S, Client
from .journaled import NS_PER_S, Journaled


def seqs(found: dict[str, Any]) -> list[int]:
    return [row["seq"] for row in found["items"]]


def test_the_last_events_come_as_rows_of_the_journal(client: Client, journaled: Journaled) -> None:
    found = client.json("/journal/tail", limit=12)

    assert seqs(found) == list(range(92, 104))
    assert found["next"] == "103"
    last = found["items"][-1]
    assert (last["dispatcher"], last["event_class"], last["event_type"]) == ("central", "E", "GO")
    assert (last["entity"], last["started_at"], last["outcome"]) == ("thing_1", 103 * NS_PER_S, "handled")
    assert "payload" not in last


def test_payloads_are_shown_only_where_the_setting_says_so(journaled: Journaled) -> None:
    client = Client(ops_app(OpsConfig(show_payloads=True)))

    assert client.json("/journal/tail", limit=1)["items"][0]["payload"] == '{"n":103}'


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"limit": 3, "event_type": "STOP"}, [80, 90, 100]),
        ({"limit": 3, "entity": "thing_0"}, [96, 99, 102]),
        ({"limit": 3, "event_class": "E", "event_type": "STOP", "entity": "thing_0"}, [30, 60, 90]),
        ({"limit": 3, "event_class": "Other"}, []),
        ({"after_seq": 41, "limit": 4}, [42, 43, 44, 45]),
        ({"after_seq": 45, "limit": 3, "event_type": "STOP"}, [50, 60, 70]),
        ({"after_seq": 103}, []),
        ({"before_seq": 42, "limit": 3}, [39, 40, 41]),
        ({"before_seq": 42, "limit": 2, "event_type": "STOP"}, [30, 40]),
        ({"before_seq": 1}, []),
    ],
)
def test_events_are_chosen(client: Client, journaled: Journaled, query: dict[str, Any], expected: list[int]) -> None:
    found = client.json("/journal/tail", **query)

    assert seqs(found) == expected
    assert (found["next"], found["total"]) == (str(expected[-1]) if expected else None, None)


@pytest.mark.parametrize(
    ("at", "seq", "states", "is_end"),
    [
        (None, 103, {"DOWN": 1, "UP": 2}, True),
        ("2", 2, {"DOWN": 1, "UP": 1}, False),
        ("@3.5", 3, {"DOWN": 1, "UP": 2}, False),
        ("@2.999999999", 2, {"DOWN": 1, "UP": 1}, False),
        ("1970-01-01T00:00:03.5", 3, {"DOWN": 1, "UP": 2}, False),
        ("1970-01-01T00:01:00Z", 60, {"DOWN": 2, "UP": 1}, False),
        ("1970-01-01T01:01:00+01:00", 60, {"DOWN": 2, "UP": 1}, False),
        ("0", None, {}, False),
    ],
)
def test_entities_are_counted_by_state_at_a_moment(
    client: Client, journaled: Journaled, at: str | None, seq: int | None, states: dict[str, int], is_end: bool
) -> None:
    found = client.json("/journal/state", **({} if at is None else {"at": at}))

    assert found == {
        "seq": seq,
        "at": None if seq is None else seq * 1000,
        "is_end": is_end,
        "machines": {"Thing": states} if states else {},
    }


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("path", ["/journal/state", "/entities/thing_1?limit=1000"])
def test_a_scan_that_takes_too_long_is_given_up(client: Client, journaled: Journaled, path: str) -> None:
    """The client of a history got 503, but the look-up went on, and its thread was never given back."""
    status, message = client.error(path)

    assert (status, message.startswith("the journal was not read within 3 s; ask ")) == (503, True)


@pytest.mark.usefixtures("hurried")
def test_a_history_that_waits_for_another_look_up_is_given_up(client: Client, journaled: Journaled) -> None:
    entered, release = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert release.wait(WAIT_S)

    other = threading.Thread(target=lambda: entity_history(journaled.path, "thing_2", on_pause=hold))
    other.start()
    assert entered.wait(WAIT_S)

    status, message = client.error("/entities/thing_1")

    release.set()
    other.join(WAIT_S)
    assert (status, message.startswith("the journal was not read within 3 s; ask ")) == (503, True)


def test_one_scan_is_made_at_a_time(client: Client, journaled: Journaled, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, release = threading.Event(), threading.Event()

    def scan(*_: Any) -> dict[str, Any]:
        entered.set()
        assert release.wait(WAIT_S)
        return {}

    monkeypatch.setattr(journals, "states_at", scan)

    async def race() -> list[int]:
        first = asyncio.ensure_future(client.send("GET", "/journal/state"))
        while not entered.is_set():
            await asyncio.sleep(0)
        second = await client.send("GET", "/journal/state")
        release.set()
        return [(await first).status_code, second.status_code]

    assert asyncio.run(race()) == [200, 429]


# -- the history of an entity ------------------------------------------------------------------------------------------


def test_an_entity_has_its_history_from_the_journal(client: Client, journaled: Journaled) -> None:
    found = client.json("/entities/thing_1", limit=2)

    assert (found["id"], found["machine"], found["state"], found["is_kept"]) == ("thing_1", "Thing", "UP", False)
    first, second = found["history"]["items"]
    assert (first["seq"], first["at"], first["machine"]) == (103, 103_000, "Thing")
    assert (first["from_state"], first["event_type"], first["to_state"], first["valid"]) == ("NEW", "GO", "UP", True)
    assert (first["wait_s"], first["handling_s"], first["error"]) == (0.0, 0.0, None)
    assert (second["seq"], second["to_state"]) == (100, "DOWN")
    assert (found["complete"], found["history"]["next"]) == (False, "100")


def test_the_pages_of_a_history_end_with_its_beginning(client: Client, journaled: Journaled) -> None:
    seqs, cursor, pages = [], None, []
    while not pages or cursor is not None:
        page = client.json("/entities/thing_2", limit=10, after=cursor)
        cursor = page["history"]["next"]
        seqs += [item["seq"] for item in page["history"]["items"]]
        pages.append(page["complete"])

    assert seqs == list(range(101, 0, -3))
    assert pages == [False] * (len(pages) - 1) + [True]


def test_an_event_that_made_no_transition_is_in_the_history_with_its_error(client: Client, tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "other")
    begin(writer, NS_PER_S)
    end(
        writer, "central", "E", "GO", "failed", entity="a", queue_ns=5 * NS_PER_S, handling_ns=1, error="ValueError: no"
    )
    writer.flush()
    dispatcher = AsyncDispatcher(name="other", journal=writer)

    found = client.json("/entities/a")

    [item] = found["history"]["items"]
    assert (item["from_state"], item["event_type"], item["to_state"]) == ("", "GO", None)
    assert (item["wait_s"], item["handling_s"], item["error"]) == (5.0, 1e-9, "ValueError: no")
    assert (found["state"], found["complete"], dispatcher.name) == (None, True, "other")
    writer.close()
