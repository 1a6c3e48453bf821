"""A post at the limit of recursion, at every depth at which one of its steps fails.

RecursionError is a RuntimeError, and was taken for the error of a lock released twice: the post had taken the duty
to wake the handler thread, did not wake it, and returned True. From then on each post did, and no event was handled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, JournalConfig, JournalWriter

from ...kit import TIMEOUT_S, Work, until
from ..stage import Item

DEPTHS = 45
"""More than the longest of these ways has frames."""


def at_depth(depth: int, call: Callable[[], Any]) -> Any:
    return at_depth(depth - 1, call) if depth else call()


def deepest() -> int:
    """The last depth at which a call in C still works."""
    depth = sys.getrecursionlimit()
    while True:
        try:
            at_depth(depth, lambda: len(()))
        except RecursionError:
            depth -= 1
        else:
            return depth


def post_later(dispatcher: AsyncDispatcher, event: Any) -> bool:
    return dispatcher.post_later(event).result(TIMEOUT_S)


def ask(dispatcher: AsyncDispatcher, event: Any) -> bool:
    asked: Future[Any] = dispatcher.ask(event)
    return asked.result(TIMEOUT_S) is None


def put_mail(dispatcher: AsyncDispatcher, event: Any) -> bool:
    dispatcher.mailbox_executor.execute(lambda: dispatcher.post(event))
    return True


WAYS: dict[str, Callable[[AsyncDispatcher, Any], bool]] = {
    "post": AsyncDispatcher.post,
    "post_nowait": AsyncDispatcher.post_nowait,
    "post_later": post_later,
    "ask": ask,
    "mail": put_mail,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "timed": {"config": DispatcherConfig(measure_times="all")},
    "bounded": {"queue_capacity": 3},
    "coalescing": {"coalesce_by": lambda event: "all"},
    "write-ahead": {"journal": JournalConfig(write_ahead=True, durability="none")},
    "bounded write-ahead": {"journal": JournalConfig(write_ahead=True, durability="sync"), "queue_capacity": 3},
}


@contextmanager
def dispatching(folder: Path, handled: list[Any], **options: Any) -> Iterator[AsyncDispatcher]:
    journal, coalesce_by = options.pop("journal", None), options.pop("coalesce_by", None)
    if journal is not None:
        options["journal"] = JournalWriter(folder / "journal", journal)
    dispatcher = AsyncDispatcher(**options)
    dispatcher.register(Work, handled.append, coalesce_by=coalesce_by, events=Item)
    with dispatcher:
        yield dispatcher


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("way", WAYS)
def test_a_post_at_any_depth_leaves_a_dispatcher_that_handles_all_that_it_accepts(
    way: str, config: str, tmp_path: Path
) -> None:
    handled: list[Any] = []
    accepted: set[int] = set()
    with dispatching(tmp_path, handled, **CONFIGS[config]) as dispatcher:
        queue, last = dispatcher.core.queue, deepest()

        def post(number: int) -> None:
            if WAYS[way](dispatcher, Item(Work.DO, number)):
                accepted.add(number)

        post(0)
        until(dispatcher._mailbox.parking.is_waiting)
        for number in range(1, DEPTHS):
            with suppress(RecursionError):
                at_depth(last - number, partial(post, number))
            assert dispatcher.await_drained(TIMEOUT_S), f"{number}: no thread was woken"
            until(dispatcher._mailbox.parking.is_waiting)  # mail is no event: the drain does not wait for it
            assert queue.room.remaining() == queue.room.capacity, f"{number}: a permit is gone"
        post(DEPTHS)

        assert dispatcher.await_drained(TIMEOUT_S)
    assert {0, DEPTHS} < accepted <= {event.number for event in handled}
