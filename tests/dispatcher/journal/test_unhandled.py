"""The unhandled events of a journal that is being written."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from dispatcher import JournalConfig, JournalWriter
from dispatcher.journal import read

from ...kit.journals import frames_of, segments

WAIT_S = 60.0


def line(number: int) -> bytes:
    return b'{"event_class":"Work","event_type":"DO","model":"Numbered","event":{"number":%d}}' % number


def writer_in(folder: Path, **options: Any) -> JournalWriter:
    return JournalWriter(folder, JournalConfig(write_ahead=True, **options))


def seqs(folder: Path) -> list[int]:
    return [each.seq for each in read.read_unhandled(folder).events]


def test_what_was_settled_is_not_unhandled(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    for number in range(1, 5):
        writer.append_accepted(line(number))
        writer.roll()

    writer.settle_on_disk((1, 3))

    assert seqs(tmp_path) == [2, 4]
    assert read.read_unhandled(tmp_path).first_line == line(1)
    writer.close()
    assert seqs(tmp_path) == [2, 4]


def test_a_segment_that_is_closed_before_it_is_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_in(tmp_path)
    writer.append_accepted(line(1))
    damages: list[str] = []

    def look_at(folder: Path) -> Any:
        snapshot = original(folder)
        writer.roll()
        return snapshot

    original = read.look_at
    monkeypatch.setattr(read, "look_at", look_at)

    assert [each.seq for each in read.read_unhandled(tmp_path, damages.append).events] == [1]
    assert damages == []
    writer.close()


def test_a_segment_that_was_cut_between_frames_is_reported(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    writer.append_accepted(line(1))
    writer.append_accepted(line(2))
    writer.close()
    [segment] = segments(tmp_path)
    segment.write_bytes(segment.read_bytes()[: frames_of(segment)[2].offset])
    damages: list[str] = []

    found = read.read_unhandled(tmp_path, damages.append)

    assert [each.seq for each in found.events] == [1]
    assert damages == ["segment-00000001.journal: has no end"]


def test_beside_a_writer_no_event_is_missed_or_seen_twice(tmp_path: Path) -> None:
    """Each event is in the journal before the next one, and is settled after the one before."""
    writer = writer_in(tmp_path, segment_bytes=4096, durability="none")
    done = threading.Event()

    def write() -> None:
        try:
            for number in range(1, 100):
                seq = writer.append_accepted(line(number))
                if number % 2:
                    writer.settle_on_disk((seq,))
        finally:
            done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        found = seqs(tmp_path)
        even = [seq for seq in found if not seq % 2]
        assert even == list(range(2, 2 * len(even) + 1, 2))
        assert [seq for seq in found if seq % 2] in ([], [2 * len(even) + 1])
    thread.join(WAIT_S)
    writer.close()
    assert seqs(tmp_path) == list(range(2, 100, 2))
