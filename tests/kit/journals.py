"""A journal in a folder: written row by row, read, and damaged."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from dispatcher import Event, JournalConfig, JournalError, JournalWriter
from dispatcher.journal import EVENTS, TRANSITIONS, read_rows, recover, verify
from dispatcher.journal.format.event_codec import EventCodec, encode_payload, marks_of, with_marks
from dispatcher.journal.format.marks import NO_EVENT, Marks
from dispatcher.journal.read import frames_in
from dispatcher.journal.turns import LaterAppend

from ..journal_rows import begin, end
from .segment_files import (
    ACCEPTED,
    END,
    ROWS,
    SNAPSHOT,
    START,
    Frame,
    Manifest,
    Table,
    open_segment_path,
    open_segments,
    read_manifest,
    read_summary,
    segment_number,
    segment_path,
    segments,
)

__all__ = [
    "Job",
    "JobEvent",
    "JournalStage",
    "Later",
    "Manifest",
    "Open",
    "Posted",
    "State",
    "after_a_crash",
    "codec_of",
    "contents",
    "crash_amid",
    "files",
    "flip",
    "frames_of",
    "id_of",
    "intact_frames",
    "is_locked",
    "kind_of",
    "line_of_a_rhythm",
    "marks_in",
    "no_room",
    "open_segments",
    "read_manifest",
    "read_summary",
    "rows",
    "segment_path",
    "segments",
    "seqs",
    "shown_loss",
    "write_event",
    "write_frames",
    "write_segments",
]

Open = Callable[..., JournalWriter]
"""Makes a writer of a folder; keywords are its configuration."""


class Job(Enum):
    STARTED = 1
    ENDED = 2


class State(Enum):
    NEW = 1
    RUNNING = 2


class JobEvent(Event[Job]):
    __slots__ = ("entity", "payload")

    def __init__(self, entity: Any = "job_1", payload: Any = None, type: Any = Job.STARTED) -> None:
        super().__init__(type, 0.0)
        self.entity = entity
        self.payload = payload


@dataclass
class Posted:
    """An event that a write-ahead log keeps."""

    type: Job
    number: int


class Later(LaterAppend):
    """An event that no thread waits for, which notes what becomes of it."""

    def __init__(self, line: bytes) -> None:
        super().__init__(line)
        self.calls: list[str] = []
        self.told = threading.Event()

    def end(self) -> None:
        self.calls.append("end")
        super().end()

    def tell(self) -> None:
        self.calls.append("tell")
        self.told.set()


def write_event(
    writer: JournalWriter,
    event: JobEvent | None = None,
    *,
    transitions: int = 0,
    dispatcher: str = "central",
    outcome: str = "handled",
    error: BaseException | None = None,
    accepted_seq: int = 0,
    redelivered: bool = False,
) -> None:
    """One event of which all times follow from its number, with transitions made while it was handled."""
    event = event or JobEvent()
    begin(writer, (writer.seq + 1) * 1000)
    for _ in range(transitions):
        writer.transition("Job", "job_1", State.NEW, Job.STARTED, State.RUNNING, valid=True)
    end(
        writer,
        dispatcher,
        type(event.type).__name__,
        event.type.name,
        outcome,
        entity=event.entity,
        payload=None if event.payload is None else encode_payload(event.payload),
        queue_ns=10,
        handling_ns=20,
        error=None if error is None else f"{type(error).__name__}: {error}",
        accepted_seq=accepted_seq,
        redelivered=redelivered,
    )


def rows(journal: Path, table: Table) -> list[dict[str, Any]]:
    return list(read_rows(journal, table))


def seqs(journal: Path, table: Table = EVENTS) -> list[int]:
    return [row["seq"] for row in rows(journal, table)]


def files(journal: Path) -> list[str]:
    """The journal's files, without its lock."""
    return sorted(path.name for path in journal.iterdir() if path.name != ".lock")


def contents(journal: Path) -> dict[str, bytes]:
    return {name: (journal / name).read_bytes() for name in files(journal)}


KINDS = {START: "START", ROWS: "ROWS", ACCEPTED: "ACCEPTED", SNAPSHOT: "SNAPSHOT", END: "END"}


def frames_of(segment: Path, *kinds: str) -> list[Frame]:
    """The frames of an undamaged segment: all of them, or only some kinds."""
    assert all(isinstance(frame, Frame) for frame in frames_in(segment))
    return intact_frames(segment, *kinds)


def intact_frames(segment: Path, *kinds: str) -> list[Frame]:
    """The intact frames of a segment that may be damaged: all of them, or only some kinds."""
    found = (frame for frame in frames_in(segment) if isinstance(frame, Frame))
    return [frame for frame in found if not kinds or kind_of(frame) in kinds]


def kind_of(frame: Frame) -> str:
    return KINDS[frame.header.kind]


def codec_of(*classes: type, of: type[Enum]) -> EventCodec:
    """A codec for events of these classes, whose types are members of the Enum class `of`."""
    codec = EventCodec("shop")
    codec.declare(of, classes)
    return codec


def line_of_a_rhythm(**marks: Any) -> bytes:
    """The line of a `post_every` in the format of releases that stored no event in it."""
    return with_marks(NO_EVENT, Marks(**marks))


def marks_in(journal: Path) -> list[Marks]:
    """The marks of all accepted events."""
    frames = [frame for segment in segments(journal) for frame in intact_frames(segment, "ACCEPTED")]
    return [marks_of(line) for frame in frames for line in frame.payload.split(b"\n")]


def id_of(journal: Path) -> str:
    """The journal's id, from its manifest."""
    manifest, _ = read_manifest(journal)
    assert manifest is not None
    assert manifest.journal is not None
    return manifest.journal


def flip(path: Path, offset: int, mask: int = 1) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def is_locked(journal: Path) -> bool:
    """Whether a writer has the journal."""
    with (journal / ".lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def no_room(*_: object, **__: object) -> Any:
    """Stands for a call of the system while the disk is full."""
    raise OSError(28, "No space left on device")


def after_a_crash(journal: Path, copy: Path) -> Path:
    """What is on the disk now, as a writer leaves it that dies at this moment."""
    shutil.copytree(journal, copy)
    return copy


def crash_amid(
    do: Callable[[], None],
    journal: Path,
    copy: Path,
    changes: int,
    operations: Sequence[str] = ("open", "rename", "replace", "unlink"),
) -> None:
    """Run `do`, and copy the journal as a crash after its first `changes` file operations would leave it.

    If `do` makes no further file operation, there is no copy.
    """
    left, caller = changes, threading.get_ident()

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def crash_or_change(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if threading.get_ident() == caller:
                if not left:
                    after_a_crash(journal, copy)
                left -= 1
            return change(*arguments, **options)

        return crash_or_change

    with ExitStack() as patches:
        for name in operations:
            patches.enter_context(patch.object(os, name, counted(getattr(os, name))))
        do()


def write_frames(writer: JournalWriter, count: int = 1, *, accepted_seq: int = 0, **options: Any) -> None:
    """So many events, each in a frame of its own. `accepted_seq`: of the first; other options as of `write_event`."""
    for number in range(count):
        write_event(writer, accepted_seq=accepted_seq and accepted_seq + number, **options)
        writer.flush()


def write_segments(writer: JournalWriter, count: int = 1, *, accepted_seq: int = 0, **options: Any) -> None:
    """So many closed segments of one event each; otherwise as `write_frames`."""
    for number in range(count):
        write_frames(writer, accepted_seq=accepted_seq and accepted_seq + number, **options)
        writer.roll()


class JournalStage:
    """A journal and its files, step by step. Words are numbers, or options such as `write_ahead=true`.

    Verbs that are not defined here are calls of the writer, such as `flush`, `roll` and `close`, or of paths. Segments
    are called by their numbers, an open one with a dot before it, and the manifest `json`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[JournalWriter] = []
        self.noted: dict[str, bytes] = {}

    @property
    def writer(self) -> JournalWriter:
        return self.opened[-1]

    def close(self) -> None:
        for writer in self.opened:
            writer.close()

    def play(self, verb: str, *words: str) -> None:
        if verb in ("unlink", "touch", "mkdir", "rmdir"):
            for name in words:
                getattr(self._path(name), verb)()
            return
        numbers = [word for word in words if "=" not in word]
        options = dict(word.split("=") for word in words if "=" in word)
        do = getattr(self, f"do_{verb}", None) or getattr(self.writer, verb)
        do(*numbers, **{name: json.loads(text) for name, text in options.items()})

    def look(self, what: str) -> Iterable[object]:
        return getattr(self, f"see_{what}")()  # type: ignore[no-any-return]

    # -- writing -------------------------------------------------------------------------------------------------------

    def do_open(self, **config: Any) -> None:
        self.opened.append(JournalWriter(self.folder, JournalConfig(**config)))

    def do_refused(self, said: str, **config: Any) -> None:
        """Another writer is refused, with a message that says so."""
        with pytest.raises(JournalError, match=re.escape(said.replace("_", " "))):
            self.do_open(**config)

    def do_event(self, count: str = "1", moves: int = 0, seq: int = 0) -> None:
        """`moves`: the transitions of each. `seq`: the accepted seq of the first."""
        for number in range(int(count)):
            write_event(self.writer, transitions=moves, accepted_seq=seq and seq + number)

    def do_frame(self, count: str = "1", moves: int = 0, seq: int = 0) -> None:
        write_frames(self.writer, int(count), transitions=moves, accepted_seq=seq)

    def do_segment(self, count: str = "1", moves: int = 0, seq: int = 0) -> None:
        write_segments(self.writer, int(count), transitions=moves, accepted_seq=seq)

    def do_accept(self, count: str = "1") -> None:
        for _ in range(int(count)):
            self.writer.append_accepted(b'{"n":%d}' % self.writer.log.next_accepted)

    def do_log(self, count: str = "1") -> None:
        """Closed segments of three accepted events each."""
        for _ in range(int(count)):
            self.do_accept("3")
            self.writer.roll()

    def do_settle(self, seq: str) -> None:
        self.writer.settle(int(seq))

    def do_retain(self) -> None:
        self.writer.log.retain()

    def do_age(self, seconds: str) -> None:
        """The open segment becomes older."""
        self.writer.log._segment.opened_s -= float(seconds)

    def do_room(self, segments_: str) -> None:
        """Retention from now on keeps as many bytes as so many of the first segment have."""
        size = segment_path(self.folder, 1).stat().st_size
        config = self.writer.config.model_copy(update={"retention_bytes": max(1, round(size * float(segments_)))})
        self.writer.log.config = config

    # -- what happens to files -----------------------------------------------------------------------------------------

    def do_crash(self) -> None:
        """Go on with a copy of what is on the disk now."""
        self.folder = after_a_crash(self.folder, self.folder.with_name(f"{self.folder.name} crashed"))

    def do_note(self) -> None:
        """Note what the files hold."""
        self.noted = contents(self.folder)

    def do_recover(self) -> None:
        recover(self.folder)

    def do_old(self, *numbers: str) -> None:
        for number in numbers:
            os.utime(self._path(number), (1, 1))

    def do_zero(self, *names: str) -> None:
        for name in names:
            path = self._path(name)
            path.write_bytes(bytes(path.stat().st_size))

    def do_keep(self, name: str, count: str) -> None:
        """Cut a file behind so many bytes."""
        self._path(name).write_bytes(self._path(name).read_bytes()[: int(count)])

    def do_copy(self, name: str) -> None:
        """Copy the folder as it is now."""
        after_a_crash(self.folder, self.folder.with_name(name))

    def do_go(self, name: str) -> None:
        """Go on with that copy."""
        self.folder = self.folder.with_name(name)

    def do_bring(self, name: str, file: str) -> None:
        """Put a copy's file into the folder."""
        shutil.copy(self.folder.with_name(name) / self._path(file).name, self.folder)

    def do_empty(self, *names: str) -> None:
        for name in names:
            self._path(name).write_bytes(b"")

    def do_cut(self, name: str, more: str = "0") -> None:
        """Leave a segment its first frame, and so many bytes of the next one."""
        path = self._path(name)
        path.write_bytes(path.read_bytes()[: frames_of(path)[0].end + int(more)])

    def do_tear(self, name: str, count: str) -> None:
        """Take so many bytes off the end."""
        self._path(name).write_bytes(self._path(name).read_bytes()[: -int(count)])

    def do_flip(self, name: str, frame: str) -> None:
        """Change the last byte of a frame."""
        flip(self._path(name), frames_of(self._path(name))[int(frame)].end - 1)

    def _path(self, name: str) -> Path:
        if name == "json":
            return self.folder / "journal.json"
        number = int(name.removeprefix("."))
        return (open_segment_path if name.startswith(".") else segment_path)(self.folder, number)

    # -- looks ---------------------------------------------------------------------------------------------------------

    def see_files(self) -> list[str]:
        return list(map(shortened, files(self.folder)))

    def see_aside(self) -> list[str]:
        """The files that recovery has set aside, with their sizes."""
        return [f"{shortened(path.name)}={path.stat().st_size}" for path in sorted(self.folder.glob("*.aside*"))]

    def see_closed(self) -> list[int]:
        """The closed segments."""
        return list(map(segment_number, segments(self.folder)))

    def see_manifest(self) -> list[object]:
        manifest, problem = read_manifest(self.folder)
        assert manifest is not None, problem
        return [manifest.first, manifest.last, "closed" if manifest.closed else "open"]

    def see_seqs(self) -> list[int]:
        return seqs(self.folder)

    def see_moves(self) -> list[int]:
        """The seqs of the transitions."""
        return seqs(self.folder, TRANSITIONS)

    def see_found(self) -> list[object]:
        """What `verify` finds: the numbers of events and transitions, and the problems."""
        events, transitions, problems, *_ = verify(self.folder)
        return [events, transitions, *map(shortened, problems)]

    def see_done(self) -> list[str]:
        """What a recovery does."""
        return list(map(shortened, recover(self.folder).done))

    def see_changed(self) -> list[str]:
        """What has changed since the files were noted; "1>2": the first has the name of the second now."""
        now, before = contents(self.folder), self.noted
        moved = {old: new for old in before.keys() - now for new in now.keys() - before if now[new] == before[old]}
        others = {name for name in {*now, *before} if now.get(name) != before.get(name)} - {*moved, *moved.values()}
        return [shortened(f"{old}>{new}") for old, new in moved.items()] + list(map(shortened, sorted(others)))

    def see_syncs(self) -> list[int]:
        return [self.writer.log.syncs]

    def see_next(self) -> list[int]:
        """The accepted seq that the next event gets."""
        return [self.writer.append_accepted(b'{"n":%d}' % self.writer.log.next_accepted)]

    def see_recovered(self) -> list[int]:
        """The unhandled events that the writer has found."""
        return [accepted.seq for accepted in self.writer.recovered]

    def see_outstanding(self) -> list[int]:
        """The unhandled events that a recovery finds."""
        accepted = recover(self.folder).accepted
        assert all(each.line == b'{"n":%d}' % each.seq for each in accepted)
        return [each.seq for each in accepted]

    def see_places(self) -> list[str]:
        """The unhandled events that a recovery finds, each with its segment."""
        return [f"{each.seq}@{each.segment}" for each in recover(self.folder).accepted]

    def see_continues(self) -> list[int]:
        """With which event, accepted event and segment a writer would go on after a recovery."""
        recovered = recover(self.folder)
        return [recovered.summary.next_seq, recovered.summary.next_accepted, recovered.next_segment]

    def see_lost(self) -> list[str]:
        """The losses that the writer has found."""
        return list(map(shown_loss, self.writer.losses))

    def see_losses(self) -> list[str]:
        """The losses that a recovery finds."""
        return list(map(shown_loss, recover(self.folder).losses))

    def see_needs(self) -> list[str]:
        """Of each closed segment, the first that recovery needs, and the oldest accepted seq that it may find there."""
        found = [summary for summary in map(read_summary, segments(self.folder)) if summary is not None]
        return [f"{summary.recover_from}:{summary.outstanding_from}" for summary in found]


def shown_loss(loss: Any) -> str:
    """The segments, and the accepted seqs: "2:4-6"; nothing behind the dash if the last one is unknown."""
    return f"{shortened(loss.segments)}:{loss.first}-{loss.last if loss.last is not None else ''}"


def shortened(line: str) -> str:
    """A line with the short names of the files, and N for numbers of bytes other than 0."""
    line = re.sub(r"\.segment-0*(\d+)\.journal\.open", r".\1", line)
    line = re.sub(r"segment-0*(\d+)\.journal", r"\1", line).replace("journal.json", "json")
    return re.sub(r"\b[1-9]\d*(?= bytes)|(?<=byte )[1-9]\d*", "N", line)
