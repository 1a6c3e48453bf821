"""What a signal handler raises during a post, after each call that the post makes, leaves nothing behind.

A timeout that came between the permit and the append leaked a place of a bounded queue for ever. In `post_later` and
`ask` in write-ahead mode it ended the thread that writes the journal, and every later post hung.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, JournalConfig, JournalWriter, QueueFullError

from ...kit import TIMEOUT_S, Work, until
from ...kit.interrupting import at_each_place
from ..stage import Item

WAYS: dict[str, Callable[[AsyncDispatcher, Any], Any]] = {
    "post": lambda dispatcher, event: dispatcher.post(event),
    "post_nowait": AsyncDispatcher.post_nowait,
    "post_later": AsyncDispatcher.post_later,
    "ask": AsyncDispatcher.ask,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "block": {"queue_full_policy": "block"},
    "reject": {"queue_full_policy": "reject"},
    "drop_oldest": {"queue_full_policy": "drop_oldest"},
    "context": {"context": True},
    "write-ahead": {"journal": "none"},
    "write-ahead sync": {"journal": "sync"},
    "write-ahead drop_oldest": {"journal": "none", "queue_full_policy": "drop_oldest"},
}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("way", WAYS)
def test_an_exception_at_any_place_leaks_neither_permit_nor_duty_nor_writer(
    way: str, config: str, tmp_path: Path
) -> None:
    options = dict(CONFIGS[config])
    journal, context = options.pop("journal", None), options.pop("context", False)
    writer = JournalWriter(tmp_path, JournalConfig(write_ahead=True, durability=journal)) if journal else None
    handled: list[int] = []
    dispatcher = AsyncDispatcher(DispatcherConfig(queue_capacity=2, **options), name="shop", journal=writer)
    dispatcher.register(Work, lambda event: handled.append(event.number), events=Item, context=context)
    with dispatcher:
        queue = dispatcher.core.queue

        def call() -> None:
            with suppress(QueueFullError):
                WAYS[way](dispatcher, Item(Work.DO, 1))

        def at_rest_again() -> None:
            call()  # as the leader of a batch, it removes what the interrupted one has left
            until(lambda: queue.room.remaining() == 2, "all permits are back")

        places = at_each_place(call, before=at_rest_again)
        at_rest_again()
        handled.clear()
        WAYS[way](dispatcher, Item(Work.DO, 2))
        until(lambda: 2 in handled, "a later event is handled")

        assert places >= 3  # more of them if the handler thread has to be woken
        assert dispatcher.await_drained(TIMEOUT_S)
        assert queue.room.remaining() == 2
        assert not queue.room.is_crowded


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_amid_a_post_that_drops_the_oldest_ends_that_once(way: str) -> None:
    config = DispatcherConfig(queue_capacity=1, queue_full_policy="drop_oldest")
    dispatcher = AsyncDispatcher(config, name="shop")  # not started: the queue stays full
    dispatcher.register(Work, print)
    asked = [dispatcher.ask(Item(Work.DO, 0))]

    def call() -> None:
        asked.append(dispatcher.ask(Item(Work.DO, 0)))
        WAYS[way](dispatcher, Item(Work.DO, 0))

    at_each_place(call)
    dispatcher.post(Item(Work.DO, 0))

    stats = dispatcher.stats()
    assert (dispatcher.queue_size(), dispatcher.core.queue.room.remaining()) == (1, 0)
    assert stats.accepted == 1 + stats.discarded
    assert all(each.done() for each in asked)
