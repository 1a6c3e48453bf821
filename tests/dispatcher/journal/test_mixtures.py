"""Folders with files of two states of one journal, or of two journals, as two copies of a live one leave them.

Each file comes from the earlier state, from the later one, or is absent; all combinations are tried. Recovery removes
and shortens nothing that is whole, and `verify` names what does not belong together.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dispatcher import JournalConfig, JournalWriter
from dispatcher.journal import EVENTS, TABLES, read_rows, recover, tail, verify

from ...kit.commands import run_here
from ...kit.journals import (
    JobEvent,
    JournalStage,
    files,
    frames_of,
    id_of,
    intact_frames,
    open_segments,
    read_manifest,
    segment_path,
    segments,
    write_event,
)
from ...kit.scenarios import play
from ...kit.segment_files import segment_number, write_segments

ABSENT = ""
MANIFEST = "journal.json"
OF_MISSING_FILES = re.compile(r"(is|are) missing|follows \d+$")


class States(NamedTuple):
    """Two states of a journal, and everything that was ever in it."""

    earlier: Path
    later: Path
    rows: dict[str, list[dict[str, Any]]]
    lines: dict[int, bytes]
    """Accepted events by their seq."""


class Growing(JournalStage):
    """A journal that is written, and copied meanwhile."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder / "journal")
        self.lines: dict[int, bytes] = {}

    def do_write(self, frames: str = "1") -> None:
        """In each frame the row of one event; every third is left unhandled."""
        for _ in range(int(frames)):
            line = b'{"number":%d}' % (len(self.lines) + 1)
            seq = self.writer.append_accepted(line)
            self.lines[seq] = line
            write_event(self.writer, JobEvent(f"job_{seq}"), transitions=1, accepted_seq=seq if seq % 3 else 0)
            self.writer.flush()

    def do_rolls(self, count: str = "1", frames: str = "2") -> None:
        """Closed segments of so many frames."""
        for _ in range(int(count)):
            self.do_write(frames)
            self.writer.roll()

    def do_retain_from(self, number: str) -> None:
        """Remove the segments before this one, as retention does."""
        log = self.writer.log
        while log._first < int(number):
            oldest = segment_path(self.folder, log._first)
            log._first += 1
            log._write_manifest(closed=False)
            oldest.unlink()


BEGIN = "open write_ahead=true"
PAIRS = {
    # Two closed ones, and a third that grew between the copies.
    "same segment open": (f"{BEGIN} | rolls 2 | write | copy earlier | write 2 | copy later | close | copy everything"),
    # The open segment of the earlier state is closed in the later one, whose manifest says that all are.
    "closed in between": (
        f"{BEGIN} | rolls | write | copy earlier | write | rolls | close | copy later | copy everything"
    ),
    # Retention has removed the earlier state's first two segments; the open one was closed, and two more begun.
    "retained in between": (
        f"{BEGIN} | rolls 2 | write | copy earlier | rolls 2 | write | copy everything | retain_from 3 | copy later"
    ),
    # Retention has removed all segments of the earlier state, and one more.
    "nothing in common": (
        f"{BEGIN} | rolls 2 | copy earlier | rolls 2 | write | copy everything | retain_from 4 | copy later"
    ),
}
"""How two states come about."""


@pytest.fixture(params=PAIRS)
def states(request: pytest.FixtureRequest, tmp_path: Path) -> States:
    folder = tmp_path / "states"
    journal = Growing(folder)
    play(journal, PAIRS[request.param])
    journal.close()
    recover(folder / "everything")  # reads the open segment as well
    rows = {table.name: list(read_rows(folder / "everything", table)) for table in TABLES}
    return States(folder / "earlier", folder / "later", rows, journal.lines)


def mixtures(states: States, folder: Path) -> Iterator[tuple[Path, str]]:
    """Every mixture, each in a new folder, with what it is made of."""
    names = sorted({*files(states.earlier), *files(states.later)})
    choices: list[list[tuple[str, bytes]]] = []
    for name in names:
        found: dict[bytes, str] = {}
        for state in (states.later, states.earlier):
            if (state / name).exists():
                found[(state / name).read_bytes()] = state.name
        choices.append([*((label, data) for data, label in found.items()), (ABSENT, b"")])
    for number, chosen in enumerate(itertools.product(*choices)):
        if all(label == ABSENT for label, _ in chosen):
            continue
        mixture = folder / f"{states.earlier.parent.name} {number}"
        mixture.mkdir()
        for name, (label, data) in zip(names, chosen, strict=True):
            if label != ABSENT:
                (mixture / name).write_bytes(data)
        yield mixture, ", ".join(f"{name}: {label}" for name, (label, _) in zip(names, chosen, strict=True) if label)


def payloads(folder: Path) -> set[bytes]:
    """The rows and accepted events of all intact frames of the folder, in whatever file they are."""
    found: set[bytes] = set()
    for path in folder.iterdir():
        if "segment-" in path.name:
            plain = folder.parent / (re.sub(r"\.aside.*", "", path.name) + ".copy")
            shutil.copy(path, plain)
            found |= {frame.payload for frame in intact_frames(plain, "ROWS", "ACCEPTED")}
            plain.unlink()
    return found


def journal_of(segment: Path) -> Any:
    """The id in a segment's start."""
    return json.loads(frames_of(segment)[0].payload)["journal"]


def named(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {tuple(sorted(row.items())) for row in rows}


def check(mixture: Path, what: str, states: States) -> None:
    """The properties of recovery, on one mixture."""
    before = verify(mixture).problems
    whole = {path.read_bytes() for path in segments(mixture)}
    frames = payloads(mixture)
    read = {table.name: list(read_rows(mixture, table)) for table in TABLES}
    closed, left_open = set(map(segment_number, segments(mixture))), open_segments(mixture)
    for path in left_open:
        if segment_number(path) < max(closed, default=0) or segment_number(path) in closed or path != left_open[-1]:
            assert any(problem.startswith(f"{path.name}: is ") for problem in before), what

    recovered = recover(mixture)

    for line in recovered.done:
        if "set aside as" in line and not line.startswith(MANIFEST):
            assert any(problem.startswith(line.partition(":")[0]) for problem in before), (what, line)
        elif "is of another state" in line:
            assert any("the manifest begins at" in problem for problem in before), (what, line)
    after = {path.name: path.read_bytes() for path in mixture.iterdir()}
    assert whole <= set(after.values()), what
    assert frames <= payloads(mixture), what
    assert all(states.lines[accepted.seq] == accepted.line for accepted in recovered.accepted), what
    for table in TABLES:
        rows = list(read_rows(mixture, table))
        assert named(rows) <= named(states.rows[table.name]), what
        assert len(named(rows)) == len(rows), what
        lost = named(read[table.name]) - named(rows)
        assert not lost or any("is of another state of the journal" in line for line in recovered.done), what
    for problem in verify(mixture).problems:
        assert OF_MISSING_FILES.search(problem), (what, problem)
    assert verify(mixture).open_segments == (), what
    assert recover(mixture).done == (), what
    assert {path.name: path.read_bytes() for path in mixture.iterdir()} == after, what


@pytest.mark.parametrize("count", [20, pytest.param(None, marks=pytest.mark.minutes)])
def test_recovery_shortens_and_removes_nothing_whole_in_any_mixture(
    states: States, tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int | None
) -> None:
    caplog.set_level("CRITICAL")
    every = list(mixtures(states, tmp_path))

    for mixture, what in every if count is None else random.Random(1).sample(every, count):
        check(mixture, what, states)


def test_a_write_ahead_start_on_a_mixture_keeps_all_that_is_whole(
    states: States, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    mixture, _ = next(mixtures(states, tmp_path))  # every file there is, the later one of two
    for name in files(states.earlier):
        if not (mixture / name).exists():
            shutil.copy(states.earlier / name, mixture)
    whole = {path.read_bytes() for path in segments(mixture)}

    writer = JournalWriter(mixture, JournalConfig(write_ahead=True, on_loss="start"))
    write_event(writer, JobEvent("new"))
    writer.close()

    assert whole <= {path.read_bytes() for path in mixture.iterdir()}
    assert [row["entity"] for row in tail(mixture, 1)] == ["new"]
    assert all(OF_MISSING_FILES.search(problem) for problem in verify(mixture).problems)


# -- the cases by themselves -----------------------------------------------------------------------------------------


STALE = ".1:_is_stale:_1_is_closed"
CASES = {
    # The open one replaced the closed one, with 100 events, and `verify` had found no problem.
    "a stale open segment is set aside, and the closed one stays": (
        f"{BEGIN} | write | copy earlier | rolls 1 99 | close | bring earlier .1 | note -> found 100 100 {STALE}"
        f" ; done {STALE}:_set_aside_as_1.open.aside ; changed .1>1.open.aside ; found 100 100"
    ),
    "files are set aside under names of their own, and told once": (
        f"{BEGIN} | write | copy earlier | rolls | close | bring earlier .1 | recover | bring earlier .1 | recover"
        f" | bring earlier .1 -> done {STALE}:_set_aside_as_1.open.aside-3 ; done"
    ),
    "segments before a gap that retention has left are set aside": (
        f"{PAIRS['nothing in common']} | go later | bring earlier 1 | note -> found 5 5 1:_the_manifest_begins_at_4"
        " 4,_frame_1:_accepted_seq_7_follows_2 4,_frame_2:_seq_7_follows_2"
        " ; done 1:_is_of_another_state_of_the_journal,_which_begins_at_4:_set_aside_as_1.aside"
        " 5:_closed:_kept_1_event,_cut_0_bytes ; changed 1>1.aside .5 json 5 ; found 3 3"
    ),
    "of a damaged closed segment and an open one with more, the open one is kept": (
        f"{BEGIN} | write 3 | copy earlier | close | bring earlier .1 | keep 1 200 | note"
        " -> done 1:_is_damaged,_and_.1_has_more_of_it:_set_aside_as_1.aside"
        " 1:_closed:_kept_3_events,_cut_0_bytes ; files json 1 1.aside ; aside 1.aside=200 ; found 3 3"
    ),
}


@pytest.mark.parametrize("script", CASES.values(), ids=CASES)
def test_a_folder_with_files_of_two_states(tmp_path: Path, script: str) -> None:
    stage = Growing(tmp_path)

    play(stage, script)

    stage.close()


@pytest.mark.parametrize("first", [2, 15, 21, 40])
def test_a_manifest_of_a_later_state_removes_no_segment(tmp_path: Path, first: int) -> None:
    """Recovery removed the 20 segments before its first, and said that there was nothing to repair."""
    play(Growing(tmp_path), f"{BEGIN} | rolls 20 1 | close")
    folder = tmp_path / "journal"
    manifest, _ = read_manifest(folder)
    assert manifest is not None
    replace(manifest, first=first, last=max(20, first - 1)).write(folder, sync=False)
    before = {path.name: path.read_bytes() for path in segments(folder)}

    problems = verify(folder).problems
    recovered = recover(folder)

    if first != 2:  # the removal of the first may have been cut short
        assert f"segment-00000001.journal: the manifest begins at {first}" in problems
    assert recovered.done[0].startswith("journal.json: ")
    assert {path.name: path.read_bytes() for path in segments(folder)} == before
    assert len(list(read_rows(folder, EVENTS))) == 20
    assert recovered.first_segment == 1
    assert recovered.next_segment == max(20, first - 1) + 1


def test_the_command_names_what_was_set_aside(tmp_path: Path) -> None:
    pytest.importorskip("typer", reason="typer is not installed: pip install 'central-dispatcher[cli]'")
    stage = Growing(tmp_path)
    play(
        stage,
        f"{BEGIN} | write | copy earlier | rolls | close | bring earlier .1 | recover | bring earlier .1 | recover",
    )

    shown = run_here("journal", "verify", stage.folder)

    names = "segment-00000001.journal.open.aside, segment-00000001.journal.open.aside-2"
    assert shown.code == 0
    assert shown.out.splitlines()[0] == f"set aside by recovery, and not read: {names}"


# -- two journals ----------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two journals of three segments each, with the same numbers."""
    for name in ("one", "other"):
        play(Growing(tmp_path / name), f"{BEGIN} | rolls 3 | close")
    return tmp_path / "one" / "journal", tmp_path / "other" / "journal"


def test_each_journal_has_an_id_of_its_own_which_stays(two: tuple[Path, Path]) -> None:
    ids = [id_of(folder) for folder in two]

    with contextlib.closing(JournalWriter(two[0], JournalConfig(write_ahead=True))) as writer:
        write_event(writer)

    assert len(set(ids)) == 2
    assert id_of(two[0]) == ids[0]
    assert {journal_of(segment) for segment in segments(two[0])} == {ids[0]}


def test_a_segment_of_another_journal_is_told_not_read_and_set_aside(two: tuple[Path, Path]) -> None:
    one, other = two
    shutil.copy(segment_path(other, 2), one)
    finding = f"segment-00000002.journal: is of another journal, {id_of(other)}"

    problems = verify(one).problems
    reported: list[str] = []
    read = [row["seq"] for row in read_rows(one, EVENTS, on_damage=reported.append)]
    done = recover(one).done

    assert f"{finding}: not read" in problems
    assert (read, reported) == ([1, 2, 5, 6], [f"{finding}: not read"])
    assert done == (f"{finding}: set aside as segment-00000002.journal.aside",)
    assert (one / "segment-00000002.journal.aside").read_bytes() == segment_path(other, 2).read_bytes()


def test_a_manifest_of_another_journal_is_told_and_set_aside(two: tuple[Path, Path]) -> None:
    one, other = two
    own, foreign = id_of(one), id_of(other)
    shutil.copy(other / MANIFEST, one)
    finding = f"journal.json: is of another journal, {foreign}; the segments are of {own}"

    problems = verify(one).problems
    done = recover(one).done

    assert problems == (finding,)
    assert done == (f"{finding}: set aside as journal.json.aside",)
    assert id_of(one) == own
    assert verify(one) == (6, 6, (), (), ())


@pytest.mark.slow
def test_recovery_shortens_and_removes_nothing_whole_in_any_mixture_of_two_journals(
    two: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    for mixture, what in mixtures(States(two[0], two[1], {}, {}), tmp_path):
        whole = {path.read_bytes() for path in segments(mixture)}
        ids = {journal_of(path) for path in segments(mixture)}
        before = verify(mixture).problems
        read = {table.name: named(list(read_rows(mixture, table))) for table in TABLES}

        recovered = recover(mixture)

        assert whole <= {path.read_bytes() for path in mixture.iterdir()}, what
        assert recovered.journal_id in ids or not ids, what
        assert len(ids) < 2 or any("is of another journal" in problem for problem in before), what
        assert {table.name: named(list(read_rows(mixture, table))) for table in TABLES} == read, what
        assert all(OF_MISSING_FILES.search(problem) for problem in verify(mixture).problems), what
        assert recover(mixture).done == (), what


def test_without_a_manifest_the_journal_of_most_segments_counts(two: tuple[Path, Path]) -> None:
    one, other = two
    own = id_of(one)
    shutil.copy(segment_path(other, 3), one)
    (one / MANIFEST).unlink()

    recover(one)

    assert id_of(one) == own
    assert [path.name for path in segments(one)] == ["segment-00000001.journal", "segment-00000002.journal"]


def test_a_journal_without_an_id_is_read_and_gets_one_when_it_is_continued(tmp_path: Path) -> None:
    """Earlier releases wrote none."""
    folder = write_segments(tmp_path / "old", [[]], [], [], accepted=b"{}")
    text = (folder / MANIFEST).read_text()

    problems = verify(folder).problems
    done = recover(folder).done
    unchanged = (folder / MANIFEST).read_text()
    with contextlib.closing(JournalWriter(folder, JournalConfig(write_ahead=True))) as writer:
        write_event(writer)

    assert "journal" not in json.loads(text)
    assert (problems, done) == ((), ())
    assert unchanged == text
    assert len(id_of(folder)) == 36
    assert verify(folder) == (1, 0, (), (), ())
