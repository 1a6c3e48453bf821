"""What /journal, /journal/check and /journal/outstanding say, beside the writer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher import JournalConfig, JournalWriter

from ...kit import until
from .client import Client, Hanging, Job, JobEvent, hanging
from .journaled import Journaled


@pytest.fixture
def ahead(tmp_path: Path) -> Iterator[Hanging]:
    """In write-ahead mode."""
    with hanging(journal=JournalWriter(tmp_path / "ahead", JournalConfig(write_ahead=True))) as found:
        yield found


def test_a_journal_says_what_its_segments_hold_newest_first(client: Client, journaled: Journaled) -> None:
    found = client.json("/journal")

    newest, oldest = found["segments"][0], found["segments"][-1]
    assert (found["dispatcher"], found["path"], found["write_ahead"]) == ("central", str(journaled.path), False)
    assert (newest["is_open"], newest["number"]) == (True, found["segments_total"])
    assert (oldest["number"], oldest["first_seq"], oldest["since"]) == (1, 1, 1000)
    assert sum(each["bytes"] for each in found["segments"]) == found["bytes"]
    assert (found["problems"], found["outstanding"]) == ([], None)


def test_a_journal_names_missing_segments_and_damaged_ends(client: Client, journaled: Journaled) -> None:
    first, second, *_ = sorted(journaled.path.glob("segment-*.journal"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-7])

    found = client.json("/journal")

    assert found["problems"] == [f"{first.name}: is missing", "segment 2: its end is damaged"]
    assert found["segments"][-1] == {"number": 2, "bytes": second.stat().st_size, "is_open": False, "is_damaged": True}


def test_a_check_finds_a_changed_byte(client: Client, journaled: Journaled) -> None:
    sound = client.json("/journal/check")
    segment = min(journaled.path.glob("segment-*.journal"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)

    damaged = client.json("/journal/check")

    assert (sound["events"], sound["problems"], sound["next"]) == (103, [], None)
    assert damaged["problems_total"] >= 1
    assert segment.name in damaged["problems"][0]


def test_a_check_that_takes_too_long_says_where_to_go_on(
    client: Client, journaled: Journaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.ops.journal_contents.CHECK_S", 0)
    events, after, checks = 0, None, 0
    while after is not None or not checks:
        found = client.json("/journal/check", **({} if after is None else {"after": after}))
        events, after, checks = events + found["events"], found["next"], checks + 1
        assert (found["segments"], found["problems"]) == (1, [])

    assert events == 103
    assert checks > 2


def test_what_was_accepted_and_not_handled_comes_in_pages_oldest_first(client: Client, ahead: Hanging) -> None:
    for number in range(300):
        ahead.post(Job.START, f"early_{number}")
    ahead.hang("stuck")
    for number in range(3):
        ahead.post(Job.START, f"late_{number}")

    until(
        lambda: client.json("/journal/outstanding")["items"][0]["entity"] == "stuck", "the rows of the handled events"
    )

    first = client.json("/journal/outstanding", limit=2)
    second = client.json("/journal/outstanding", limit=2, after=first["next"])

    assert [(each["seq"], each["event_type"], each["entity"]) for each in first["items"]] == [
        (301, "HANG", "stuck"),
        (302, "START", "late_0"),
    ]
    assert [each["entity"] for each in second["items"]] == ["late_1", "late_2"]
    assert (first["next"], second["next"]) == ("302", None)
    assert client.json("/journal")["outstanding"] == 4


@pytest.mark.usefixtures("hurried")
def test_a_scan_for_what_is_outstanding_ends_at_its_deadline(client: Client, ahead: Hanging) -> None:
    for number in range(10):
        ahead.post(Job.START, f"early_{number}")

    status, message = client.error("/journal/outstanding")

    assert (status, message) == (
        503,
        "the journal was not read within 3 s; ask again when fewer events are outstanding",
    )


def test_what_a_delayed_event_waits_for_is_told(client: Client, ahead: Hanging) -> None:
    ahead.dispatcher.post_after(3600, JobEvent(Job.START, "later"), key="reminder")

    [found] = client.json("/journal/outstanding")["items"]

    assert (found["entity"], found["key"], found["due"] > found["accepted_at"]) == ("later", "reminder", True)
