"""A partitioned journal is read, verified and recovered as one journal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from dispatcher import JournalConfig, JournalError, MultiDispatcher, PartitionedJournal
from dispatcher.journal import EVENTS, TRANSITIONS, check_journal, entity_history, read_rows, recover, tail, verify

from ...journal_rows import begin, end
from ...kit.commands import run_here
from ...kit.journals import after_a_crash, flip
from ...kit.segment_files import look_at

S = 1_000_000_000


class Lamp(Enum):
    OFF = 1
    ON = 2


class Switch(Enum):
    PRESSED = 1


@dataclass
class Pressed:
    type: Switch
    lock_key: str


@pytest.fixture
def partitioned(journal: Path) -> Iterator[PartitionedJournal]:
    partitioned = PartitionedJournal(journal, JournalConfig(write_ahead=True))
    yield partitioned
    partitioned.close()


Write = Callable[..., None]


@pytest.fixture
def write(partitioned: PartitionedJournal) -> Write:
    """Writes an event of a partition about an entity at a time, with a transition from `on` or from off."""
    writers = partitioned.open(3)

    def write(partition: int, at_s: int, entity: str, *, on: bool | None = None) -> None:
        writer = writers[partition]
        begin(writer, at_s * S)
        if on is not None:
            before, after = (Lamp.ON, Lamp.OFF) if on else (Lamp.OFF, Lamp.ON)
            writer.transition("Lamp", entity, before, Switch.PRESSED, after, valid=True)
        end(writer, f"lamps-{partition}", "Switch", "PRESSED", "handled", entity=entity)
        writer.flush()

    return write


def places(rows: Any) -> list[tuple[int, int]]:
    """The partition and the seq of each row."""
    return [(row["partition"], row["seq"]) for row in rows]


def test_rows_of_all_partitions_come_in_the_order_of_their_times(journal: Path, write: Write) -> None:
    for partition, at_s in ((0, 1), (2, 2), (0, 3), (1, 4), (2, 5)):
        write(partition, at_s, "lamp", on=False)

    assert places(read_rows(journal, EVENTS)) == [(0, 1), (2, 1), (0, 2), (1, 1), (2, 2)]
    assert places(read_rows(journal, TRANSITIONS)) == [(0, 1), (2, 1), (0, 2), (1, 1), (2, 2)]
    assert places(tail(journal, 3)) == [(0, 2), (1, 1), (2, 2)]
    assert tail(journal, 0) == []


def test_rows_of_a_partition_stay_in_their_order_if_its_clock_is_set_back(journal: Path, write: Write) -> None:
    for partition, at_s in ((0, 5), (1, 4), (0, 2), (0, 6)):
        write(partition, at_s, "lamp")

    assert [place for place in places(read_rows(journal, EVENTS)) if not place[0]] == [(0, 1), (0, 2), (0, 3)]


def test_a_damaged_partition_is_named(journal: Path, write: Write, partitioned: PartitionedJournal) -> None:
    write(1, 1, "lamp")
    write(2, 2, "other")
    partitioned.close()
    segment = journal / "partition-1" / "segment-00000001.journal"
    flip(segment, segment.stat().st_size // 2)
    lines: list[str] = []

    rows = list(read_rows(journal, EVENTS, on_damage=lines.append))

    assert "other" in [row["entity"] for row in rows]
    assert lines
    assert all(line.startswith("partition-1/segment-00000001.journal") for line in lines)
    problems = verify(journal).problems
    assert problems
    assert all(line.startswith("partition-1/segment-00000001.journal") for line in problems)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_partition_is_reported(
    journal: Path, write: Write, partitioned: PartitionedJournal, missing: int
) -> None:
    for partition in range(3):
        write(partition, 1, f"lamp_{partition}")
    partitioned.close()
    shutil.rmtree(journal / f"partition-{missing}")
    lines: list[str] = []

    rows = list(read_rows(journal, EVENTS, on_damage=lines.append))

    assert {row["partition"] for row in rows} == {0, 1, 2} - {missing}
    assert lines == [f"partition-{missing}: is missing"]
    assert verify(journal).problems == (f"partition-{missing}: is missing",)
    [loss] = recover(journal).losses
    assert str(loss) == f"partition-{missing}: accepted events from number 1 on may be lost"
    history = entity_history(journal, f"lamp_{(missing + 1) % 3}", on_damage=lines.append)
    assert (len(history.transitions), history.complete) == (1, False)


def test_a_missing_or_damaged_file_is_reported_and_the_partitions_are_read(
    journal: Path, write: Write, partitioned: PartitionedJournal
) -> None:
    write(2, 1, "lamp")
    partitioned.close()

    flip(journal / "partitions.json", 20)
    assert verify(journal)[::2][:2] == (1, ("partitions.json: is damaged",))
    (journal / "partitions.json").unlink()
    assert verify(journal)[::2][:2] == (1, ("partitions.json: is missing",))


def test_a_partition_that_a_writer_is_about_to_make_is_not_missing(journal: Path, write: Write) -> None:
    (journal / "partition-3").mkdir()

    assert verify(journal).problems == ()


def test_what_reads_one_journal_names_a_partition_to_read(journal: Path, write: Write) -> None:
    with pytest.raises(JournalError, match=r"a partitioned journal; name one of its partitions, such as .*partition-0"):
        look_at(journal)


def test_unhandled_events_of_all_partitions_are_listed(
    journal: Path, tmp_path: Path, partitioned: PartitionedJournal, write: Write
) -> None:
    partitioned._writers[0].append_accepted(b"zero")
    partitioned._writers[2].append_accepted(b"two")
    crashed = after_a_crash(partitioned.path, tmp_path / "crashed")

    recovered = recover(crashed)

    assert [accepted.line for accepted in recovered.accepted] == [b"zero", b"two"]
    assert [line.partition(":")[0] for line in recovered.done] == [
        f"partition-{partition}/segment-00000001.journal" for partition in (0, 2)
    ]
    assert recover(crashed).accepted == recovered.accepted


def test_the_history_of_an_entity_spans_the_partitions(journal: Path, write: Write) -> None:
    write(0, 1, "lamp", on=False)
    write(1, 2, "lamp", on=True)
    write(1, 3, "other", on=False)
    write(0, 4, "lamp", on=False)

    found = entity_history(journal, "lamp")
    assert [row.at // S for row in found.transitions] == [4, 2, 1]
    assert [row.dispatcher for row in found.transitions] == ["lamps-0", "lamps-1", "lamps-0"]
    assert found.complete

    newest = entity_history(journal, "lamp", limit=2)
    assert [row.at // S for row in newest.transitions] == [4, 2]
    assert not newest.complete


def test_a_history_before_a_seq_is_of_one_partition(journal: Path, write: Write) -> None:
    write(0, 1, "lamp", on=False)

    with pytest.raises(JournalError, match="counts seqs in each partition; name the folder of one, or a time"):
        entity_history(journal, "lamp", before_seq=2)

    assert entity_history(journal / "partition-0", "lamp", before_seq=2).complete


def test_the_commands_take_the_folder_as_one_journal(
    journal: Path, write: Write, partitioned: PartitionedJournal
) -> None:
    write(0, 1, "lamp", on=False)
    write(1, 2, "lamp", on=True)
    is_open = run_here("journal", "verify", journal)
    partitioned.close()
    assert check_journal(journal) == journal

    assert "partition-1/.segment-00000001.journal.open: open: being written" in is_open.out
    verified, tailed, recovered, history, state = (
        run_here("journal", *args)
        for args in (
            ("verify", journal),
            ("tail", journal),
            ("recover", journal),
            ("history", journal, "lamp"),
            ("state", journal),
        )
    )
    assert [each.code for each in (verified, tailed, recovered, history, state)] == [0] * 5
    assert verified.out == "2 events, 2 transitions, 0 problems\n"
    assert '"partition": 1' in tailed.out.splitlines()[-1]
    assert recovered.out == "nothing to repair: no segment is open\n"
    assert [line.split()[2] for line in history.out.splitlines()[1:]] == ["Lamp", "Lamp"]
    assert "the journal has no later transition" in state.out
    assert "disagreement" not in state.err


@pytest.mark.parametrize(("at", "state"), [("@1", "ON"), ("@2", "OFF"), ("@9", "ON")])
def test_the_state_at_a_moment_follows_an_entity_through_its_partitions(
    journal: Path, write: Write, at: str, state: str
) -> None:
    for partition in (1, 1):
        write(partition, 0, "another", on=False)
    write(1, 1, "lamp", on=False)
    write(0, 2, "lamp", on=True)
    write(2, 3, "lamp", on=False)

    ended = run_here("journal", "state", journal, "--at", at, "--entity", "lamp", "-f", "json")

    assert f'"state": "{state}"' in ended.out
    assert '"disagreements": 0' in ended.out


def test_the_state_at_a_seq_is_of_one_partition(journal: Path, write: Write) -> None:
    write(0, 1, "lamp", on=False)

    ended = run_here("journal", "state", journal, "--at", "1")

    assert ended.code == 2
    assert "--at 1: a partitioned journal counts seqs in each partition" in ended.err


FACTORY = f"""
from dispatcher import AsyncDispatcher, MultiDispatcher
from {__name__} import Pressed, Switch

def make(journal):
    dispatcher = MultiDispatcher(partitions=2, journal=journal)
    dispatcher.register(Switch, print, events=Pressed)
    return dispatcher

def forget(journal):
    return MultiDispatcher(partitions=2)
"""


def test_unhandled_events_are_redelivered_without_the_daemon(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_for_partitions.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    dispatcher = MultiDispatcher(partitions=3, journal=PartitionedJournal(journal, JournalConfig(write_ahead=True)))
    dispatcher.register(Switch, lambda event: None, events=Pressed)
    dispatcher.set_drain_events_on_stop(False)
    with dispatcher:
        for writer in dispatcher.journal._writers if dispatcher.journal is not None else ():
            codec = dispatcher.partitions[0].core.queue.write_ahead
            writer.append_accepted(codec.encode(Pressed(Switch.PRESSED, "lamp")))

    forgot = run_here("journal", "recover", journal, "--with", "module_for_partitions:forget")
    assert "should return a MultiDispatcher(journal=journal)" in forgot.err
    made = run_here("journal", "recover", journal, "--with", "module_for_partitions:make")
    assert made.out.splitlines()[-1] == "3 events handled, 0 failed, 0 left"
    assert verify(journal).problems == ()
