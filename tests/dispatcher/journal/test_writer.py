"""The rows of the journal. Its segments are in test_segments.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Flag
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter
from dispatcher.journal import EVENTS, TRANSITIONS, verify

from ...journal_rows import begin, end
from ...kit import TIMEOUT_S
from ...kit.journals import Job, JobEvent, State, encode_payload, rows, write_segments

ODD_STRINGS = [
    "",
    'a "quoted" word',
    "back\\slash",
    "two\nlines\r\n",
    "tab\tand\0nul",
    "größe ✓ 漢字",
    "\N{PILE OF POO}",
    "\u2028 separates lines",
    "lone surrogate \ud800",
    '","seq":7}',
]


class Rights(Flag):
    READ = 1
    WRITE = 2


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def dispatch(journal: Path, *events: Any, handle: Callable[[Any], Any] = lambda _: None) -> None:
    """Have a dispatcher handle the events, with a journal of them."""
    dispatcher = AsyncDispatcher(name="central", journal=JournalWriter(journal))
    dispatcher.register(Job, handle)
    with dispatcher:
        for event in events:
            assert dispatcher.event_handler.handle(event)
        assert dispatcher.await_drained(TIMEOUT_S)


# -- rows ------------------------------------------------------------------------------------------------------------


def test_a_full_event_row_has_the_columns_of_the_schema_in_their_order(writer: JournalWriter, journal: Path) -> None:
    begin(writer, 1000)
    end(
        writer,
        *("central", "Job", "STARTED", "failed"),
        entity="job_1",
        payload='{"a":[1]}',
        queue_ns=100,
        handling_ns=200,
        error="LookupError: lost",
        accepted_seq=7,
        redelivered=True,
    )
    writer.close()

    [row] = rows(journal, EVENTS)
    assert list(row) == [column.name for column in EVENTS.columns]
    assert row == {
        "seq": 1,
        "dispatcher": "central",
        "event_class": "Job",
        "event_type": "STARTED",
        "entity": "job_1",
        "enqueued_at": 900,
        "started_at": 1000,
        "finished_at": 1200,
        "queue_ns": 100,
        "handling_ns": 200,
        "outcome": "failed",
        "error": "LookupError: lost",
        "payload": '{"a":[1]}',
        "accepted_seq": 7,
        "redelivered": True,
    }


def test_a_transition_row_has_the_columns_of_the_schema_in_their_order(writer: JournalWriter, journal: Path) -> None:
    begin(writer, 1000)
    writer.transition("Job", "job_1", State.NEW, Job.STARTED, State.RUNNING, valid=True)
    writer.transition("Job", "job_1", State.RUNNING, Job.STARTED, State.RUNNING, valid=False)
    end(writer, "central", "Job", "STARTED", "handled")
    writer.close()

    read = rows(journal, TRANSITIONS)
    assert [list(row) for row in read] == [[name for name in TRANSITIONS.names if name != "data"]] * 2
    assert read[0] == {
        "seq": 1,
        "machine": "Job",
        "entity": "job_1",
        "from_state": "NEW",
        "event_type": "STARTED",
        "to_state": "RUNNING",
        "at": 1000,
        "valid": True,
    }
    assert (read[1]["from_state"], read[1]["valid"]) == ("RUNNING", False)


def test_a_relative_path_stays_the_same_folder_when_the_process_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked up again for each segment, so a daemon that went to / failed for want of "room"."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    writer = JournalWriter("journal", JournalConfig())
    monkeypatch.chdir("elsewhere")

    write_segments(writer)
    writer.close()

    assert writer.path == tmp_path / "journal"
    assert len(rows(tmp_path / "journal", EVENTS)) == 1


def surrogates_escaped(text: str) -> str:
    """The text as it is read back: a character that UTF-8 cannot encode is its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


@pytest.mark.long
@given(texts=st.lists(st.text(st.characters()), max_size=4))
@example(ODD_STRINGS)
def test_any_string_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("journal")
    writer = JournalWriter(path)
    for text in texts:
        begin(writer, 1)
        writer.transition(text, text, State.NEW, Job.STARTED, State.NEW, valid=True)
        payload = encode_payload({text: texts})
        end(writer, text, "Job", "STARTED", "failed", entity=text, payload=payload, error=text)
    writer.close()

    for text, event, transition in zip(texts, rows(path, EVENTS), rows(path, TRANSITIONS), strict=True):
        escaped = surrogates_escaped(text)
        assert (event["dispatcher"], event["entity"], event["error"]) == (text, escaped, escaped)
        assert json.loads(event["payload"]) == {text: texts}
        assert (transition["machine"], transition["entity"]) == (text, escaped)
    assert verify(path).problems == ()


@pytest.mark.parametrize(
    ("type_", "event_class", "event_type"),
    [
        (Rights.READ | Rights.WRITE, "Rights", "READ|WRITE"),
        (Rights(0), "Rights", str(Rights(0))),
        ("no enum", "str", "no enum"),
        (None, "NoneType", "None"),
    ],
)
def test_an_event_of_an_odd_type_is_recorded_all_the_same(
    journal: Path, type_: Any, event_class: str, event_type: str
) -> None:
    """A flag without a name raised TypeError on the handler thread."""
    dispatch(journal, SimpleNamespace(type=type_), object())

    odd, without_type = rows(journal, EVENTS)
    assert (odd["event_class"], odd["event_type"]) == (event_class, event_type)
    assert (without_type["event_class"], without_type["event_type"]) == ("NoneType", "None")


def test_a_payload_that_json_does_not_know_is_written_as_text(journal: Path) -> None:
    dispatch(journal, JobEvent(payload={"path": Path("a/b"), "state": State.NEW}))

    [row] = rows(journal, EVENTS)
    assert json.loads(row["payload"]) == {"path": "a/b", "state": "State.NEW"}


@pytest.mark.parametrize("kind", ["cycle", "key", "str"])
def test_a_payload_that_cannot_be_written_is_replaced_by_the_reason(journal: Path, kind: str) -> None:
    """One whose __str__ raises ended the handler thread."""
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    payload = {"cycle": cycle, "key": {(1, 2): 3}, "str": {"a": Unprintable()}}[kind]

    dispatch(journal, JobEvent(payload=payload))

    [row] = rows(journal, EVENTS)
    [reason] = json.loads(row["payload"]).values()
    assert reason.startswith({"cycle": "ValueError: ", "key": "TypeError: ", "str": "RuntimeError: no words"}[kind])


def test_an_error_that_cannot_be_printed_is_recorded_by_its_class(journal: Path) -> None:
    """It ended the handler thread."""

    def handle(event: object) -> None:
        raise UnprintableError

    dispatch(journal, JobEvent(), handle=handle)

    assert rows(journal, EVENTS)[0]["error"] == "UnprintableError: (its __str__ raised)"
