"""Writing the history indexes of closed segments: `Indexer` beside a writer, `index_journal` without one.

An index is written as a draft and then renamed. A look-up searches a segment that has no index.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Final
from zlib import crc32

from dispatcher.errors import JournalError
from dispatcher.journal.format.columns import decode_rows
from dispatcher.journal.format.frames import ROWS, Damage, walk
from dispatcher.journal.format.history_index import HistoryIndex, encode_index, header_for, index_path, is_orphan
from dispatcher.journal.format.schema import TABLES
from dispatcher.journal.format.segments import MANIFEST, read_end, segments
from dispatcher.journal.pacing import Pace
from dispatcher.journal.segment_log import SegmentLog
from dispatcher.journal.snapshot import parts_of
from dispatcher.util.descriptors import NO_DESCRIPTORS
from dispatcher.util.files import Permissions, explain, replace_file
from dispatcher.util.foreign import tell
from dispatcher.util.threads import NO_THREAD, postpone

log = logging.getLogger(__name__)

ENTITIES: Final = tuple(
    (table, next(column for column in table.columns if column.name == "entity")) for table in TABLES
)
"""The columns that are indexed."""
_ENTRIES_AT_ONCE: Final = 8192
_PIECE_S: Final = 0.001
_BUSY_SHARE: Final = 32.0
"""How long the indexer waits while the writer is busy, as a multiple of its own work: it takes 3 % of the time."""
_IDLE_SHARE: Final = 1.0
_STOP_S: Final = 2.0
"""How long a stop waits for the indexer's thread: longer than a piece of its work and one write take."""
_DRAFT: Final = re.compile(r"\.segment-\d+\.history\.new-\d+")
_DRAFT_S: Final = 600.0
"""A draft of this age was left by a crash: no process writes one for so long."""


class _Stopped(Exception):
    """The writer is closing: the thread ends in the middle of its work."""


def build_index(segment: Path, pause: Callable[[], None] = lambda: None) -> bytes | None:
    """The index of a closed segment; None: the segment is damaged, so look-ups have to search it.

    `pause` is called after each piece of work, which takes about a millisecond. Raises OSError.
    """
    end = read_end(segment)
    if end is None:
        return None
    offsets = array("Q")
    entries = _Entries(pause)
    for found in walk(segment, lambda header: header.kind == ROWS, check_all=True):
        if isinstance(found, Damage):
            return None
        pause()
        if found.header.kind == ROWS:
            entries.add(_hashes(found.payload, pause), len(offsets))
            offsets.append(found.offset)
    header = header_for(segment, end, len(offsets), entries.count)
    return encode_index(header, offsets, entries.in_order(), pause)


def _hashes(payload: bytes, pause: Callable[[], None]) -> set[int]:
    rows = decode_rows(payload)
    # The names first: most come back in the frame, and a set tells that faster than a checksum is made.
    names: set[bytes] = set()
    for table, column in ENTITIES:
        for _, lengths, texts in rows.text_pieces(table.stored_name(column)):
            names.update(map(BytesIO(texts).read, lengths))
            pause()
    hashes: set[int] = set()
    rest = iter(names)
    while some := set(map(crc32, islice(rest, _ENTRIES_AT_ONCE))):
        hashes |= some
        pause()
    return hashes


class _Entries:
    """Sorts the entries of an index without a long call: first chunks, then ranges of hashes across all chunks."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self.count = 0
        self._pause = pause
        self._pending: list[int] = []
        self._chunks: list[array[int]] = []

    def add(self, hashes: Collection[int], frame: int) -> None:
        self.count += len(hashes)
        rest = iter(hashes)
        while some := [hash_ << 32 | frame for hash_ in islice(rest, _ENTRIES_AT_ONCE)]:
            self._pending += some
            if len(self._pending) >= _ENTRIES_AT_ONCE:
                self._close_chunk()

    def in_order(self) -> Iterator[array[int]]:
        self._close_chunk()
        bits = (self.count // _ENTRIES_AT_ONCE).bit_length()
        starts = [0] * len(self._chunks)
        for number in range(1 << bits):
            limit = (number + 1) << (64 - bits)
            part = array("Q")
            for place, chunk in enumerate(self._chunks):
                start = starts[place]
                starts[place] = end = bisect_left(chunk, limit, start)
                part += chunk[start:end]
            self._pause()
            yield array("Q", sorted(part))
            self._pause()

    def _close_chunk(self) -> None:
        self._pending.sort()
        self._chunks.append(array("Q", self._pending))
        self._pending = []
        self._pause()


def write_index(segment: Path, data: bytes, mode: int) -> None:
    """Write a segment's index, unless retention has removed the segment meanwhile. Raises OSError."""
    path = index_path(segment)
    draft = path.with_name(f"{path.name}.new-{os.getpid()}")
    replace_file(path, data, draft=draft, sync=False, mode=mode, owner_of=segment)
    # Retention may have removed the segment before the rename, and so have missed this index.
    if not segment.exists():
        path.unlink(missing_ok=True)


def index_journal(path: Path | str) -> int:
    """Write the history indexes that are missing or unsound; returns how many. Safe beside the journal's writer.

    Damaged segments get none.

    Raises:
        JournalError: an index cannot be written.
    """
    return sum(map(_index_folder, parts_of(path).folders))


def _index_folder(path: Path) -> int:
    try:
        mode = Permissions.of_file(path / MANIFEST).file_mode
        return sum(1 for segment in segments(path) if not is_indexed(segment) and _index(segment, mode, lambda: None))
    except OSError as error:
        raise JournalError(f"{path}: the history cannot be indexed: {explain(error, path)}") from error


def is_indexed(segment: Path, pause: Callable[[], None] = lambda: None) -> bool:
    """Whether a closed segment has a sound index. Raises OSError: the segment cannot be read."""
    try:
        end = read_end(segment)
    except FileNotFoundError:
        return False
    with contextlib.suppress(JournalError, OSError), HistoryIndex(index_path(segment)) as index:
        if end is not None and index.header.is_of(segment, end):
            index.check(pause)
            return True
    return False


def _index(segment: Path, mode: int, pause: Callable[[], None]) -> bool:
    """Index a segment; returns False if it is damaged, or retention has removed it. Raises OSError."""
    try:
        data = build_index(segment, pause)
    except FileNotFoundError:
        return False
    if data is None:
        return False
    write_index(segment, data, mode)
    return True


class Indexer:
    """Indexes the closed segments of a writer's journal. Its thread exists only while there is work.

    While rows are written, the thread works for 3 % of the time, which leaves the rest to the handler.
    """

    def __init__(self, segment_log: SegmentLog) -> None:
        self._log = segment_log  # read only
        self._mode = Permissions[segment_log.config.permissions].file_mode
        # Leaf lock, re-entrant: a signal handler may post, and so close a segment, while its thread holds it.
        self._lock = threading.RLock()
        self._has_work = False  # guarded by _lock
        self._unsound: set[Path] = set()  # segments for which a look-up found no sound index; guarded by _lock
        self._thread: threading.Thread | None = None  # guarded by _lock
        self._is_postponed = False  # its start has failed and will be tried again; guarded by _lock
        self._stopped = threading.Event()
        self._done: set[Path] = set()  # segments looked at; the indexer's thread
        self._refused: set[Path] = set()  # damaged ones; the indexer's thread
        self._frames = 0  # of the writer, at the last wait; the indexer's thread
        self._has_warned = False  # the indexer's thread
        self._has_cleaned = False  # the indexer's thread
        with _indexers_lock:
            _indexers[_key(segment_log.path)] = self

    def wake(self, unsound: Path | None = None) -> None:
        """Look for segments to index: one was closed, or a look-up found `unsound` without a sound index.

        Any thread may call this. It waits at most for a new thread to start. If none can be started, the work waits.
        """
        with self._lock:
            self._has_work = True
            if unsound is not None:
                self._unsound.add(unsound)
        try:
            self._start()
        except NO_THREAD as error:
            with self._lock:
                was_postponed, self._is_postponed = self._is_postponed, True
            if not was_postponed:
                postpone(f"{self._log.path}: the index of its history", self._start_again, error)

    def _start_again(self) -> None:
        self._start()
        with self._lock:
            self._is_postponed = False

    def _start(self) -> None:
        """Start the thread, unless it runs or has nothing to do. Raises NO_THREAD."""
        with self._lock:
            if self._thread is not None or self._stopped.is_set() or not self._has_work:
                return
            thread = threading.Thread(target=self._run, name=f"journal-{self._log.path.name}-index", daemon=True)
            if self._thread is None:  # no call, so no signal handler, between the look and the store
                self._thread = thread
            if self._thread is thread:
                try:
                    thread.start()
                except NO_THREAD:
                    self._thread = None
                    raise

    def stop(self) -> None:
        """End the thread. Segments that are not indexed by then are left to the next writer or `index_journal`."""
        self._stopped.set()
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_S)

    def _run(self) -> None:
        while self._take_work():
            try:
                pause = Pace(_PIECE_S, self._share, self._wait).pause
                if not self._has_cleaned:
                    _remove_leftovers(self._log.path, pause)
                    self._has_cleaned = True
                self._index_all(pause)
            except _Stopped:
                return
            except OSError as error:
                self._done.clear()  # the next closed segment makes it try all of them again
                if not (error.errno in NO_DESCRIPTORS or self._has_warned or self._stopped.is_set()):
                    self._has_warned = True
                    path = self._log.path
                    tell(log, logging.WARNING, "%s: the history cannot be indexed: %s", path, explain(error, path))

    def _index_all(self, pause: Callable[[], None]) -> None:
        listed = segments(self._log.path)
        self._done.intersection_update(listed)
        self._refused.intersection_update(listed)
        for segment in reversed(listed):  # recent history is looked up most
            if segment not in self._done:
                self._wait(0.0)
                self._done.add(segment)
                if not (is_indexed(segment, pause) or _index(segment, self._mode, pause)):
                    self._refused.add(segment)

    def _take_work(self) -> bool:
        with self._lock:
            if not self._has_work:
                self._thread = None
                return False
            self._has_work = False
            unsound, self._unsound = self._unsound, set()
        self._done -= unsound - self._refused
        return True

    def _share(self) -> float:
        before, self._frames = self._frames, self._log.frames
        return _IDLE_SHARE if before == self._frames else _BUSY_SHARE

    def _wait(self, seconds: float) -> None:
        if self._stopped.wait(seconds) or self._log.is_dropped:
            raise _Stopped


def _remove_leftovers(path: Path, pause: Callable[[], None]) -> None:
    """Remove a crash's leftovers: old drafts, and indexes whose segment retention has removed. Raises OSError."""
    for file in path.iterdir():
        pause()
        if _DRAFT.fullmatch(file.name):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - file.stat().st_mtime > _DRAFT_S:
                    file.unlink()
        elif is_orphan(file):
            file.unlink(missing_ok=True)


_indexers_lock = threading.Lock()  # leaf lock; replaced in a forked child
_indexers: weakref.WeakValueDictionary[str, Indexer] = weakref.WeakValueDictionary()  # guarded by _indexers_lock


def report_unsound(segment: Path) -> None:
    """If this process has the journal's writer, make it index the segment again. Any thread."""
    with _indexers_lock:
        indexer = _indexers.get(_key(segment.parent))
    if indexer is not None:
        indexer.wake(segment)


def _after_fork() -> None:
    """In a forked child, which has none of the writers; a thread of the parent may hold the lock."""
    global _indexers_lock
    _indexers_lock = threading.Lock()
    _indexers.clear()


os.register_at_fork(after_in_child=_after_fork)


def _key(path: Path) -> str:
    return os.path.realpath(path)
