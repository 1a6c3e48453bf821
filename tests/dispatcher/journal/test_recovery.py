"""What a writer leaves that dies, and what recovery makes of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dispatcher import JournalError, JournalWriter
from dispatcher.journal import EVENTS, TRANSITIONS, recover, tail, verify

from ...kit.journals import (
    JournalStage,
    Manifest,
    Open,
    after_a_crash,
    frames_of,
    no_room,
    open_segments,
    read_summary,
    segment_path,
    segments,
    seqs,
    write_frames,
    write_segments,
)
from ...kit.scenarios import play


class KilledError(BaseException):
    """Stands for the end of the process."""


def open_segment(journal: Path) -> Path:
    [path] = open_segments(journal)
    return path


CRASHED = "open | event | event moves=2 | flush | roll | frame | frame moves=2 | frame moves=1 | crash"
"""One closed segment with two events, and an open one with three."""
CLOSED = "2:_closed:_kept_3_events,_cut_0_bytes"
PROMISES = {
    "a segment that was left open is closed": (
        f"{CRASHED} -> found 5 5 ; files .2 json 1 ; done {CLOSED} ; files json 1 2 ; manifest 1 2 closed"
        " ; found 5 5 ; seqs 1 2 3 4 5 ; moves 2 2 4 4 5 ; continues 6 1 3 ; outstanding"
    ),
    "a journal that was closed needs no recovery": "open | event | close | note -> done ; changed",
    "recovering twice is as good as once": f"{CRASHED} | recover | note -> done ; changed",
    "a segment of which nothing is left is set aside": (
        f"{CRASHED} | cut .2 8 -> done .2:_has_no_intact_frame_but_its_start:_set_aside_as_2.open.aside"
        " ; files json 1 2.open.aside ; manifest 1 1 closed"
    ),
    "a manifest that is damaged or missing is made again": (
        f"{CRASHED} | zero json -> done json:_is_damaged json:_set_aside_as_json.aside {CLOSED} ; manifest 1 2 closed"
        " | unlink json | recover -> manifest 1 2 closed ; found 5 5"
    ),
    "intact frames behind damage are kept": (
        f"{CRASHED} | flip .2 2 -> done .2:_N_bytes_from_byte_N_on_hold_no_intact_frame:_skipped {CLOSED}"
        " ; seqs 1 2 3 5"
    ),
    "events that were accepted and not handled are recovered in order": (
        "open write_ahead=true | accept 3 | segment seq=2 | accept | settle 1 | frame | crash"
        " -> places 3@1 4@2 ; outstanding 3 4 ; needs 1:1 1:3 ; found 2 0"
    ),
    "an event whose row was not written is recovered": (
        "open write_ahead=true | accept 2 | event seq=1 | settle 2 | crash -> outstanding 1 2"
    ),
    "the next writer goes on where the last one ended": (
        "open write_ahead=true | accept 3 | event seq=2 | close | open write_ahead=true -> recovered 1 3 ; next 4"
        " | event seq=1 | close -> places 3@1 4@2 | open write_ahead=true -> recovered 3 4 | event seq=3 | close"
        " -> seqs 1 2 3 ; found 3 0"
    ),
    "recovery reads no more segments than it needs, so damage in others goes unnoticed": (
        "open write_ahead=true | accept | segment seq=1 | accept | segment seq=2 | accept | segment seq=3 | accept"
        " | close | flip 1 2 | flip 2 2 -> outstanding 4"
    ),
    "after damage events are handed out again rather than lost": (
        "open write_ahead=true | accept | frame seq=1 | accept | frame seq=2 | accept | frame seq=3 | close"
        " | flip 1 4 | tear 1 1 -> outstanding 2"
    ),
    "a recovered journal still refuses a writer that is not write-ahead": (
        f"{CRASHED} | recover | refused holds_a_journal_already"
    ),
    # They began at 1 again, and the handling of a new event settled an old one of its number.
    "numbers go on behind a segment of which nothing is left": (
        "open write_ahead=true | accept | segment | accept | segment | accept | segment | close"
        " | empty 3 -> continues 3 3 4 ; outstanding 1 2"
    ),
    "numbers go on behind two segments of which nothing is left": (
        "open write_ahead=true | accept | segment | accept | segment | accept | segment | close"
        " | empty 2 3 -> continues 2 2 4 ; outstanding 1"
    ),
    # The next writer took its number, so nothing showed any more that it was missing.
    "a last segment that is missing is not written again": (
        "open write_ahead=true | segment 2 | close | unlink 2 | open write_ahead=true | event | close"
        " -> closed 1 3 ; found 2 0 2:_is_missing"
    ),
}


@pytest.fixture
def crashed(stage: JournalStage) -> Path:
    play(stage, CRASHED)
    return stage.folder


@pytest.mark.parametrize("script", PROMISES.values(), ids=PROMISES)
def test_what_is_recovered(stage: JournalStage, script: str) -> None:
    play(stage, script)


def test_the_summary_of_a_recovered_segment_is_that_of_a_closed_one(crashed: Path) -> None:
    recover(crashed)

    summary = read_summary(segment_path(crashed, 2))

    assert summary is not None
    assert summary._replace(closed_at=0) == (3, 3, 3, 1, 0, 2990, 5020, 5, 0, 3, 1)


@pytest.mark.long
def test_wherever_the_end_is_torn_off_the_rest_is_sound_and_recovery_cuts_it(crashed: Path, tmp_path: Path) -> None:
    path = open_segment(crashed)
    whole = path.read_bytes()
    ends = [frame.end for frame in frames_of(path)]
    to_recover = {0, 1, *(end + more for end in ends for more in (-1, 0, 1, 63, 64, 65, 100)), len(whole) - 50}

    for size in range(len(whole)):
        if size > ends[-2] or size % 17 == 0 or size in to_recover:
            path.write_bytes(whole[:size])
            kept = sum(end <= size for end in ends)
            left, moves = [1, 2, 3, 4, 5][: 1 + max(kept, 1)], [2, 2, 4, 4, 5][: (2, 2, 2, 4, 5)[kept]]
            found = verify(crashed)

            assert (found.problems, len(found.torn)) == ((), int(size not in (0, *ends))), size
            assert [row["seq"] for row in tail(crashed, 99)] == left, size
            assert seqs(crashed, TRANSITIONS) == moves, size

            if size in to_recover:
                copy = shutil.copytree(crashed, tmp_path / "copy")
                recover(copy)
                assert verify(copy)[2:] == ((), (), ()), size
                assert (seqs(copy), seqs(copy, TRANSITIONS)) == (left, moves), size
                shutil.rmtree(copy)


@pytest.mark.parametrize("tail_bytes", [b"\0" * 5000, b"garbage", b"\xffDJF\r\n\x1a\n" * 9, bytes(range(256)) * 9])
def test_bytes_behind_the_last_frame_are_cut_off(crashed: Path, tail_bytes: bytes) -> None:
    with open_segment(crashed).open("ab") as file:
        file.write(tail_bytes)

    assert len(verify(crashed).torn) == 1
    assert recover(crashed).done == (f"segment-00000002.journal: closed: kept 3 events, cut {len(tail_bytes)} bytes",)
    assert verify(crashed) == (5, 5, (), (), ())


@pytest.mark.parametrize("step", ["truncate", "rename", "fsync", "manifest"])
def test_recovery_that_is_killed_itself_can_be_repeated(
    crashed: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = open_segment(crashed)
    path.write_bytes(path.read_bytes()[:-5])

    def die(*args: object, **_: object) -> None:
        raise KilledError

    with monkeypatch.context() as kill:
        if step == "fsync":
            kill.setattr(os, "fsync", die)
        elif step == "manifest":
            kill.setattr(Manifest, "write", die)
        elif step == "rename":
            kill.setattr(Path, "rename", die)
        else:
            kill.setattr("dispatcher.journal.format.segments.encode_trailer", die)
        with pytest.raises(KilledError):
            recover(crashed)

    recover(crashed)

    assert seqs(crashed, EVENTS) == [1, 2, 3, 4]
    assert verify(crashed) == (4, 4, (), (), ())


@pytest.mark.long
def test_a_writer_that_died_while_it_closed_a_segment_is_recovered(
    open_writer: Open, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step of the close and the start of the next segment, nothing is lost and nothing is wrong."""
    writer = open_writer(durability="sync", write_ahead=True, retention_bytes=1)
    crashes: list[Path] = []

    def crash_before(module: object, name: str) -> None:
        call = getattr(module, name)

        def look_and_call(*args: object, **named: object) -> object:
            crashes.append(after_a_crash(journal, tmp_path / f"crash {len(crashes)}"))
            return call(*args, **named)

        monkeypatch.setattr(module, name, look_and_call)

    for module, name in ((os, "write"), (os, "fsync"), (Path, "rename"), (Path, "replace"), (Path, "unlink")):
        crash_before(module, name)
    for _ in range(3):
        writer.append_accepted(b"{}")
        write_segments(writer, transitions=1)
    writer.append_accepted(b"{}")
    writer.settle(2)
    writer.settle(1)
    writer.flush()
    writer.roll()
    writer.close()
    monkeypatch.undo()

    assert len(crashes) > 30
    for crash in crashes:
        assert verify(crash).problems == (), crash.name
        before = seqs(crash)
        recover(crash)
        after = seqs(crash)
        # Retention may have been about to remove the first.
        assert after in (before, before[1:])
        assert after == list(range(after[0], after[-1] + 1)) if after else len(before) <= 1
        assert verify(crash)[2:] == ((), (), ())


def test_a_journal_that_is_being_written_is_not_recovered(writer: JournalWriter, journal: Path) -> None:
    write_frames(writer)

    with pytest.raises(JournalError, match="is being written by another process"):
        recover(journal)

    assert seqs(journal) == [1]


def test_a_journal_that_cannot_be_repaired_says_why(crashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", no_room)

    with pytest.raises(JournalError, match="crashed: cannot be recovered: No space left on device"):
        recover(crashed)


def test_a_segment_whose_removal_was_cut_short_is_kept_for_the_next_retention(open_writer: Open, journal: Path) -> None:
    writer = open_writer(write_ahead=True)
    write_segments(writer, 3)
    writer.close()
    Manifest(2, 3, True).write(journal, sync=False)
    before = verify(journal).problems

    done = recover(journal).done

    assert before == ()
    assert done == ("journal.json: began at segment 2; segment 1 and the following ones are here",)
    assert verify(journal) == (3, 0, (), (), ())
    writer = open_writer(write_ahead=True, retention_bytes=1)
    write_segments(writer)
    assert segments(journal) == []
