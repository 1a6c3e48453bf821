"""The disk under a write-ahead journal is full: what was accepted waits for the next start, and posts are rejected."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from dispatcher import AsyncDispatcher, JournalConfig, JournalError, JournalWriter

from ...kit import Gate
from .incident import DISPATCHER, WAIT_S, Order, OrderEvent, Shown, run


class FullDisk:
    """`os`, but for a disk that takes no more."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")


@contextmanager
def incident(folder: Path) -> Iterator[Shown]:
    gate = Gate()
    config = JournalConfig(write_ahead=True, failure_policy="continue")
    dispatcher = AsyncDispatcher(name=DISPATCHER, journal=JournalWriter(folder / "journal", config))
    dispatcher.register(Order, gate, events=OrderEvent)
    with dispatcher:
        for number in range(12):
            dispatcher.post(OrderEvent(Order.PLACED, f"order_{number}"))
        assert gate.entered.wait(WAIT_S)
        with mock.patch("dispatcher.journal.format.segments.os", FullDisk()):
            for number in range(3):
                with suppress(JournalError):
                    dispatcher.post(OrderEvent(Order.PAID, f"order_{number}"))
            try:
                yield Shown("journal_failed", "Order.PAID", r"11 events queued.*12 events in the journal")
            finally:
                gate.opened.set()


if __name__ == "__main__":
    run(incident)
