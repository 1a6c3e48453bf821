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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dispatcher import JournalConfig, JournalWriter
from dispatcher.journal import EVENTS, TABLES, read_rows, recover, tail, verify
from dispatcher.journal.format.frames import ACCEPTED, ROWS, Frame
from dispatcher.journal.format.segments import (
    MANIFEST,
    Manifest,
    SegmentFile,
    open_segments,
    read_manifest,
    segment_number,
    segment_path,
    segments,
)
from dispatcher.journal.format.summary import Summary
from dispatcher.journal.identity import journal_of
from dispatcher.journal.read import frames_in
from dispatcher.journal.verification import is_whole

from .conftest import JobEvent, after_a_crash, files, write_event

ABSENT = ""
OF_MISSING_FILES = re.compile(r"(is|are) missing|follows \d+$")


class States(NamedTuple):
    """Two states of a journal, and everything that was ever in it."""

    earlier: Path
    later: Path
    rows: dict[str, list[dict[str, Any]]]
    lines: dict[int, bytes]
    """Accepted events by their seq."""


class Growing:
    """A journal that is written, and copied meanwhile."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.folder = folder
        self.writer = JournalWriter(folder / "journal", JournalConfig(write_ahead=True, **config))
        self.lines: dict[int, bytes] = {}

    def write(self, frames: int) -> None:
        """In each frame the row of one event; every third is left unhandled."""
        for _ in range(frames):
            line = b'{"number":%d}' % (len(self.lines) + 1)
            seq = self.writer.append_accepted(line)
            self.lines[seq] = line
            write_event(self.writer, JobEvent(f"job_{seq}"), transitions=1, accepted_seq=seq if seq % 3 else 0)
            self.writer.flush()

    def segments(self, count: int, frames: int = 2) -> None:
        for _ in range(count):
            self.write(frames)
            self.writer.roll()

    def retain_from(self, number: int) -> None:
        """Remove the segments before this one, as retention does."""
        log = self.writer.log
        while log._first < number:
            oldest = segment_path(self.folder / "journal", log._first)
            log._first += 1
            log._write_manifest(closed=False)
            oldest.unlink()

    def copy(self, name: str) -> Path:
        return after_a_crash(self.folder / "journal", self.folder / name)

    def states(self) -> States:
        self.writer.close()
        everything = self.folder / "everything"
        rows = {table.name: list(read_rows(everything, table)) for table in TABLES}
        return States(self.folder / "earlier", self.folder / "later", rows, self.lines)


PAIRS: dict[str, Sequence[str | int]] = {
    # Two closed ones, and a third that grew between the copies.
    "same segment open": ("roll", "roll", 1, "earlier", 2, "later", "close", "everything"),
    # The open segment of the earlier state is closed in the later one, whose manifest says that all are.
    "closed in between": ("roll", 1, "earlier", 1, "roll", "close", "later", "everything"),
    # Retention has removed the earlier state's first two segments; the open one was closed, and two more begun.
    "retained in between": ("roll", "roll", 1, "earlier", "roll", "roll", 1, "everything", "retain 3", "later"),
    # Retention has removed all segments of the earlier state, and one more.
    "nothing in common": ("roll", "roll", "earlier", "roll", "roll", 1, "everything", "retain 4", "later"),
}
"""How two states come about: a number writes so many frames, "roll" two and closes the segment, a name is a copy's."""


def states_of(steps: Sequence[str | int], folder: Path) -> States:
    journal = Growing(folder)
    for step in steps:
        if isinstance(step, int):
            journal.write(step)
        elif step == "roll":
            journal.segments(1)
        elif step == "close":
            journal.writer.close()
        elif step.startswith("retain "):
            journal.retain_from(int(step.split()[1]))
        else:
            journal.copy(step)
    recover(folder / "everything")  # reads the open segment as well
    return journal.states()


@pytest.fixture(params=PAIRS)
def states(request: pytest.FixtureRequest, tmp_path: Path) -> States:
    return states_of(PAIRS[request.param], tmp_path / "states")


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
            frames = [frame for frame in frames_in(plain) if isinstance(frame, Frame)]
            found |= {frame.payload for frame in frames if frame.header.kind in (ROWS, ACCEPTED)}
            plain.unlink()
    return found


def named(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    return {tuple(sorted(row.items())) for row in rows}


def check(mixture: Path, what: str, states: States) -> None:
    """The properties of recovery, on one mixture."""
    before = verify(mixture).problems
    whole = {path.read_bytes() for path in segments(mixture) if is_whole(path)}
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


@pytest.mark.minutes
def test_recovery_shortens_and_removes_nothing_whole_in_any_mixture(
    states: States, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")

    for mixture, what in mixtures(states, tmp_path):
        check(mixture, what, states)
        shutil.rmtree(mixture)


def test_recovery_shortens_and_removes_nothing_whole_in_some_mixtures(
    states: States, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")

    every = list(mixtures(states, tmp_path))
    for mixture, what in random.Random(1).sample(every, 20):
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


def test_a_stale_open_segment_is_set_aside_and_the_closed_one_stays(tmp_path: Path) -> None:
    """The open one replaced the closed one, with 100 events, and `verify` had found no problem."""
    journal = Growing(tmp_path)
    journal.write(1)
    stale = open_segments(journal.copy("earlier"))[0]
    journal.segments(1, frames=99)
    journal.writer.close()
    shutil.copy(stale, tmp_path / "journal")
    before = (tmp_path / "journal" / "segment-00000001.journal").read_bytes()

    found = verify(tmp_path / "journal")
    done = recover(tmp_path / "journal").done

    finding = ".segment-00000001.journal.open: is stale: segment-00000001.journal is closed"
    assert (found.events, found.problems) == (100, (finding,))
    assert done == (f"{finding}: set aside as segment-00000001.journal.open.aside",)
    assert (tmp_path / "journal" / "segment-00000001.journal").read_bytes() == before
    assert (tmp_path / "journal" / "segment-00000001.journal.open.aside").read_bytes() == stale.read_bytes()
    assert verify(tmp_path / "journal") == (100, 100, (), (), ())


@pytest.mark.parametrize("first", [2, 15, 21, 40])
def test_a_manifest_of_a_later_state_removes_no_segment(tmp_path: Path, first: int) -> None:
    """Recovery removed the 20 segments before its first, and said that there was nothing to repair."""
    journal = Growing(tmp_path)
    journal.segments(20, frames=1)
    journal.writer.close()
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


def test_segments_before_a_gap_that_retention_has_left_are_set_aside(tmp_path: Path) -> None:
    states = states_of(PAIRS["nothing in common"], tmp_path)
    shutil.copy(segment_path(states.earlier, 1), states.later)

    problems = verify(states.later).problems
    done = recover(states.later).done

    assert "segment-00000001.journal: the manifest begins at 4" in problems
    aside = "segment-00000001.journal.aside"
    assert done[0] == (
        f"segment-00000001.journal: is of another state of the journal, which begins at 4: set aside as {aside}"
    )
    assert (states.later / aside).read_bytes() == segment_path(states.earlier, 1).read_bytes()
    assert verify(states.later).problems == ()


def test_of_a_damaged_closed_segment_and_an_open_one_with_more_the_open_one_is_kept(tmp_path: Path) -> None:
    journal = Growing(tmp_path)
    journal.write(3)
    open_one = open_segments(journal.copy("earlier"))[0]
    journal.writer.close()
    folder = tmp_path / "journal"
    shutil.copy(open_one, folder)
    closed = segment_path(folder, 1)
    closed.write_bytes(closed.read_bytes()[:200])

    done = recover(folder).done

    assert done[0].startswith(
        "segment-00000001.journal: is damaged, and .segment-00000001.journal.open has more of it: "
    )
    assert (folder / "segment-00000001.journal.aside").stat().st_size == 200
    assert verify(folder) == (3, 3, (), (), ())


def test_files_are_set_aside_under_names_of_their_own_and_told_once(tmp_path: Path) -> None:
    journal = Growing(tmp_path)
    journal.write(1)
    stale = open_segments(journal.copy("earlier"))[0]
    journal.segments(1)
    journal.writer.close()
    folder = tmp_path / "journal"

    findings = []
    for _ in range(3):
        shutil.copy(stale, folder)
        findings += [line.rpartition(" ")[2] for line in recover(folder).done]
    again = recover(folder).done
    pytest.importorskip("typer", reason="typer is not installed: pip install 'central-dispatcher[cli]'")
    from typer.testing import CliRunner

    from dispatcher.cli.journal import app

    shown = CliRunner().invoke(app, ["verify", str(folder)])

    assert findings == [f"segment-00000001.journal.open.aside{number}" for number in ("", "-2", "-3")]
    assert again == ()
    assert shown.exit_code == 0
    assert shown.output.splitlines()[0] == f"set aside by recovery, and not read: {', '.join(findings)}"


# -- two journals ----------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two journals of three segments each, with the same numbers."""
    for name in ("one", "other"):
        journal = Growing(tmp_path / name)
        journal.segments(3)
        journal.writer.close()
    return tmp_path / "one" / "journal", tmp_path / "other" / "journal"


def test_each_journal_has_an_id_of_its_own_which_stays(two: tuple[Path, Path]) -> None:
    ids = [journal_id(folder) for folder in two]

    with contextlib.closing(JournalWriter(two[0], JournalConfig(write_ahead=True))) as writer:
        write_event(writer)

    assert len(set(ids)) == 2
    assert journal_id(two[0]) == ids[0]
    assert {journal_of(segment) for segment in segments(two[0])} == {ids[0]}


def test_a_segment_of_another_journal_is_told_not_read_and_set_aside(two: tuple[Path, Path]) -> None:
    one, other = two
    shutil.copy(segment_path(other, 2), one)
    finding = f"segment-00000002.journal: is of another journal, {journal_id(other)}"

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
    own, foreign = journal_id(one), journal_id(other)
    shutil.copy(other / MANIFEST, one)
    finding = f"journal.json: is of another journal, {foreign}; the segments are of {own}"

    problems = verify(one).problems
    done = recover(one).done

    assert problems == (finding,)
    assert done == (f"{finding}: set aside as journal.json.aside",)
    assert journal_id(one) == own
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
    own = journal_id(one)
    shutil.copy(segment_path(other, 3), one)
    (one / MANIFEST).unlink()

    recover(one)

    assert journal_id(one) == own
    assert [path.name for path in segments(one)] == ["segment-00000001.journal", "segment-00000002.journal"]


def test_a_journal_without_an_id_is_read_and_gets_one_when_it_is_continued(tmp_path: Path) -> None:
    """Earlier releases wrote none."""
    folder = tmp_path / "old"
    folder.mkdir()
    segment = SegmentFile(folder, 1, Summary(1))
    segment.append_accepted(b"{}", 1, 1)
    segment.close(sync=False, recover_from=1)
    Manifest(1, 1, True).write(folder, sync=False)
    text = (folder / MANIFEST).read_text()

    problems = verify(folder).problems
    done = recover(folder).done
    unchanged = (folder / MANIFEST).read_text()
    with contextlib.closing(JournalWriter(folder, JournalConfig(write_ahead=True))) as writer:
        write_event(writer)

    assert "journal" not in json.loads(text)
    assert (problems, done) == ((), ())
    assert unchanged == text
    assert len(journal_id(folder)) == 36
    assert verify(folder) == (1, 0, (), (), ())


def journal_id(folder: Path) -> str:
    manifest, _ = read_manifest(folder)
    assert manifest is not None
    assert manifest.journal is not None
    return manifest.journal
