"""A dispatcher with a journal, whose rows are written without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter

from ...journal_rows import begin, end

NS_PER_S = 1_000_000_000


class S(Enum):
    NEW = auto()
    UP = auto()
    DOWN = auto()


class E(Enum):
    GO = auto()
    STOP = auto()


class Journaled(NamedTuple):
    dispatcher: AsyncDispatcher
    writer: JournalWriter

    @property
    def path(self) -> Path:
        return self.writer.path


@contextmanager
def journaled_by(path: Path, name: str = "central", events: int = 103) -> Iterator[Journaled]:
    """Its segments are small, and the last one is open.

    Event N is about thing N % 3, at second N; each tenth one is a STOP and has failed.
    """
    writer = JournalWriter(path, JournalConfig(segment_bytes=1024, buffer_rows=5))
    for number in range(1, events + 1):
        begin(writer, number * NS_PER_S)
        writer.transition("Thing", f"thing_{number % 3}", S.NEW, E.GO, S.UP if number % 2 else S.DOWN, valid=True)
        ended = ("STOP", "failed") if number % 10 == 0 else ("GO", "handled")
        error = {"error": "OSError: no"} if ended[1] == "failed" else {}
        end(writer, name, "E", *ended, entity=f"thing_{number % 3}", payload=f'{{"n":{number}}}', **error)
    writer.flush()
    found = Journaled(AsyncDispatcher(name=name, journal=writer), writer)  # which keeps it in sight
    yield found
    writer.close()
