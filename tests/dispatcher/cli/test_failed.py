"""`dispatcher journal failed`: dead letters and failed rows, chosen and listed."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, ConfigError, JournalConfig, JournalError, JournalWriter, Retry
from dispatcher.cli.failed import parse_since

from ...kit.commands import run_here
from .letters import (
    WAIT_S,
    Order,
    OrderEvent,
    Other,
    OtherEvent,
    journal_with_failed_rows,
    leave_letters,
    leave_partitioned_letters,
)


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """Three dead letters; the class of the last one was not declared."""
    events = OrderEvent(Order.PLACED, "o1"), OrderEvent(Order.PAID, "o2"), OtherEvent(Other.PLACED)
    leave_letters(tmp_path / "letters", *events)
    return tmp_path / "letters"


def as_json(*args: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_here("journal", "failed", "--json", *args).out.splitlines()]


def entities(*args: object) -> list[str | None]:
    return [each["entity"] for each in as_json(*args)]


def test_dead_letters_are_listed_oldest_first(letters: Path) -> None:
    done = run_here("journal", "failed", letters)

    assert (done.code, done.err) == (0, "")
    title, *lines = done.out.splitlines()
    assert title.split() == ["NUMBER", "FAILED", "AT", "EVENT", "ENTITY", "ATTEMPTS", "ERROR"]
    cells = [line.split(maxsplit=5) for line in lines]
    assert [(number, *rest) for number, _, *rest in cells] == [
        ("1", "Order.PLACED", "o1", "1", "ValueError: no stock for o1\\nat all"),
        ("2", "Order.PAID", "o2", "1", "ValueError: no stock for o2\\nat all"),
        ("3", "Other.PLACED", "-", "1", "ValueError: no stock for any\\nat all"),
    ]
    assert all(datetime.fromisoformat(at).tzinfo for _, at, *_ in cells)


def test_json_has_the_fields_of_the_event_and_the_traceback(letters: Path) -> None:
    first, _, undeclared = as_json(letters)

    assert first.keys() == {
        *("number", "dispatcher", "event_class", "event_type", "entity", "failed_ns", "attempts", "error"),
        *("traceback", "event", "is_declared"),
    }
    assert (first["dispatcher"], first["event"]["entity"], first["is_declared"]) == ("shop", "o1", True)
    assert first["traceback"].startswith("Traceback (most recent call last):")
    assert (undeclared["event"], undeclared["is_declared"]) == ("OtherEvent(type=<Other.PLACED: 1>)", False)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--entity", "o2"), ["o2"]),
        (("--type", "PLACED"), ["o1", None]),
        (("--type", "Order.PLACED"), ["o1"]),
        (("--type", "PLACED", "--entity", "o1"), ["o1"]),
        (("--since", "1h"), ["o1", "o2", None]),
        (("--since", "2000-01-01"), ["o1", "o2", None]),
    ],
)
def test_options_choose_among_them(letters: Path, options: tuple[str, ...], found: list[str | None]) -> None:
    assert entities(letters, *options) == found


def test_without_one_of_the_choice_the_exit_code_is_1(letters: Path) -> None:
    done = run_here("journal", "failed", letters, "--since", "2999-01-01")

    assert (done.code, done.out, done.err) == (1, "", f"{letters}: no failed events that match\n")


def test_dead_letters_of_all_partitions_are_listed_with_their_partitions(tmp_path: Path) -> None:
    wanted = [f"o{number}" for number in range(20)]
    leave_partitioned_letters(tmp_path, *wanted)

    found, table = as_json(tmp_path), run_here("journal", "failed", tmp_path)
    verified = run_here("journal", "verify", tmp_path)
    shutil.rmtree(tmp_path / "partition-3")
    rest = run_here("journal", "failed", tmp_path)

    assert sorted(each["entity"] for each in found) == sorted(wanted)
    names = [f"{each['partition']}/{each['number']}" for each in found]
    assert len(set(names)) == 20
    assert [line.split()[0] for line in table.out.splitlines()[1:]] == names
    assert (table.err, verified.code, verified.err) == ("", 0, "")
    assert (rest.code, rest.err) == (0, "partition-3: is missing\n")


def test_fewer_partitions_leave_the_number_in_the_folder(tmp_path: Path) -> None:
    leave_partitioned_letters(tmp_path, "o1", partitions=4)
    leave_partitioned_letters(tmp_path, "o2", partitions=2)
    shutil.rmtree(tmp_path / "partition-3")

    assert "partition-3: is missing" in run_here("journal", "verify", tmp_path).err


def test_a_folder_of_one_dispatcher_is_refused_by_several_partitions(letters: Path) -> None:
    with pytest.raises(JournalError, match="holds the dead letters of a dispatcher without partitions"):
        leave_partitioned_letters(letters, "o4")

    assert entities(letters) == ["o1", "o2", None]


def test_without_dead_letters_the_failed_rows_of_a_journal_are_listed(tmp_path: Path) -> None:
    [row] = as_json(journal_with_failed_rows(tmp_path))

    assert (row["number"], row["entity"], row["error"]) == (1, "o1", "ValueError: no stock for o1\nat all")
    assert (row["attempts"], row["traceback"]) == (None, None)


def test_an_event_that_failed_and_was_tried_again_is_listed_only_if_it_failed_for_good(tmp_path: Path) -> None:
    """The row of each attempt was listed as a failed event."""

    def handle(event: OrderEvent) -> None:
        if event.entity == "o2" or dispatcher.attempt() < 3:
            raise ValueError(dispatcher.attempt())

    dispatcher = AsyncDispatcher(name="shop", journal=JournalWriter(tmp_path))
    dispatcher.register(Order, handle, on_error=Retry(attempts=3, delay_s=0))
    with dispatcher:
        for entity in ("o1", "o2"):
            assert dispatcher.post(OrderEvent(Order.PLACED, entity))
        assert dispatcher.await_drained(WAIT_S)

    assert [(each["entity"], each["error"]) for each in as_json(tmp_path)] == [("o2", "ValueError: 3")]


@pytest.mark.parametrize("write_ahead", [False, True])
def test_a_journal_in_which_nothing_has_failed_exits_with_1(tmp_path: Path, write_ahead: bool) -> None:
    JournalWriter(tmp_path, JournalConfig(write_ahead=write_ahead)).close()

    done = run_here("journal", "failed", tmp_path)

    assert (done.code, done.out, done.err) == (1, "", f"{tmp_path}: no failed events\n")


@pytest.mark.parametrize("folder", ["empty", "nowhere"])
def test_a_folder_that_is_no_journal_is_a_mistake(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()

    done = run_here("journal", "failed", tmp_path / folder)

    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"dispatcher: {tmp_path / folder}: ")


NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", "2026-11-21T09:58:30+00:00"),
        ("30m", "2026-11-21T09:30:00+00:00"),
        ("2h", "2026-11-21T08:00:00+00:00"),
        ("1d", "2026-11-20T10:00:00+00:00"),
        ("2026-11-21T10:00:00.5Z", "2026-11-21T10:00:00.500000+00:00"),
        ("2026-11-21T10:00:00+02:00", "2026-11-21T08:00:00+00:00"),
        ("2026-11-21 10:00", "2026-11-21T10:00:00+00:00"),
        ("2026-11-21", "2026-11-21T00:00:00+00:00"),
    ],
)
def test_since_is_a_time_or_how_long_ago(text: str, expected: str) -> None:
    assert parse_since(text, NOW) == int(datetime.fromisoformat(expected).timestamp() * 1000) * 1_000_000


@pytest.mark.parametrize("text", ["", "yesterday", "2w", "-2h", "999999999d", "2026-13-01"])
def test_since_that_is_no_time_is_a_mistake(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--since .*: give a time \(2026-11-21T10:00:00Z"):
        parse_since(text, NOW)
