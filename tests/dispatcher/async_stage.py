"""Scenarios of `async def` handlers: a script begins, finishes and fails their coroutines, and lets time pass."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

from dispatcher import AsyncDispatcher
from dispatcher.aio import AsyncioHandler
from dispatcher.mailbox import RejectedExecutionError

from ..kit import TIMEOUT_S, Other, Work, until
from ..kit.coroutines import Latched
from ..kit.scenarios import play
from ..kit.services import fail
from .stage import Item, Stage, item


class AsyncStage(Stage):
    """A Stage with an AsyncioHandler, of these options, whose coroutines wait until the script ends each.

    More verbs: finish NUMBER..., fail NUMBER; refused EVENT (a post); other EVENT (of a class with a plain handler);
    give_up NUMBER (an ask); unregister; break_down (a mail fails). More looks: `begun`, `ended`, `others`,
    `timed` (in the handler, and in the queue). After each step, all that can happen has.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, config: Any = (), on_error: Any = "continue", **options: Any
    ) -> None:
        self.loop, self.coroutines, self.others = loop, Latched(loop), list[int]()
        self.handler = AsyncioHandler(self.coroutines, loop=loop, **options)
        super().__init__(on_error=on_error, **dict(config))

    def _make(self) -> AsyncDispatcher:
        dispatcher = AsyncDispatcher(self._config, **self._options)
        dispatcher.register(Work, self.handler, on_error=self._register["on_error"])
        dispatcher.register(Other, lambda event: self.others.append(event.number))
        return dispatcher

    def play(self, verb: str, *words: str) -> None:
        super().play(verb, *words)
        self._rest()

    def close(self) -> None:
        self.dispatcher.set_drain_events_on_stop(False)
        self.begin("stop")
        until(lambda: self.coroutines.end(*self.coroutines.begun) or self.dispatcher.is_stopped(), "the end")
        super().close()

    def _rest(self) -> None:
        """Return once several turns of the handler thread and of the loop have changed nothing."""
        before, unchanged = None, 0
        while unchanged < 3:
            now = self._turn()
            before, unchanged = now, unchanged + 1 if now == before else 0

    def _turn(self) -> Any:
        with suppress(RejectedExecutionError, CancelledError):  # it has ended
            self.dispatcher.mailbox_executor.submit(lambda: None).result(TIMEOUT_S)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(TIMEOUT_S)
        stats = self.dispatcher.stats()
        counts = stats.queue_size, stats.in_hand, stats.retrying, stats.handled, stats.failed, stats.discarded
        return counts, len(self.coroutines.begun), len(self.coroutines.ended), len(self.others)

    # -- what happens --------------------------------------------------------------------------------------------------

    def finish(self, *numbers: str) -> None:
        self.coroutines.end(*map(int, numbers))

    def fail(self, number: str) -> None:
        self.coroutines.end(int(number), error=LookupError("lost"))

    def refused(self, event: str) -> None:
        assert not self.dispatcher.post(item(event))

    def other(self, event: str) -> None:
        assert self.dispatcher.post(Item(Other.DO, int(event)))  # type: ignore[arg-type]

    def give_up(self, number: str) -> None:
        with suppress(TimeoutError):
            self._handles[int(number)].result(0)
            raise AssertionError(f"there is an answer to {number}")

    def break_down(self) -> None:
        self.dispatcher.mailbox_executor.execute(fail)

    def unregister(self) -> None:
        assert self.dispatcher.unregister(Work, self.handler)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def look(self, what: str) -> Iterable[object]:
        match what:
            case "begun":
                return self.coroutines.begun
            case "ended":
                return sorted(self.coroutines.ended)
            case "others":
                return self.others
            case "timed":
                stats = self.dispatcher.stats()
                return [sum(each.counts) for each in (stats.handling_time, stats.queue_time) if each is not None]
        return super().look(what)


def perform_async(loop: asyncio.AbstractEventLoop, script: str, **options: Any) -> AsyncStage:
    """As `perform`, on an AsyncStage."""
    stage = AsyncStage(loop, **options)
    try:
        play(stage, script)
    finally:
        stage.close()
    return stage
