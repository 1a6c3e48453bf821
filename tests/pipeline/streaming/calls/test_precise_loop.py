"""The loop of the calls: its timers are precise, and without epoll it is asyncio's own."""

from __future__ import annotations

import asyncio
import runpy
import select
import selectors
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import pytest

from pipeline.streaming.calls import thread

DELAY_S = 0.0021
"""epoll, which counts whole milliseconds, makes 3 ms of it."""

needs_epoll = pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="no epoll on this system")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = thread.new_event_loop()
    yield made
    made.close()


async def lateness_s() -> float:
    started = perf_counter()
    await asyncio.sleep(DELAY_S)
    return perf_counter() - started - DELAY_S


def waits_of(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The timeouts with which `select` was called during sleeps. On a busy machine, one may be over before its wait."""
    waits: list[float] = []
    wait = select.select

    def watched(read: Any, write: Any, error: Any, timeout: float) -> Any:
        waits.append(timeout)
        return wait(read, write, error, timeout)

    monkeypatch.setattr(select, "select", watched)
    for _ in range(20):
        loop.run_until_complete(lateness_s())
    return waits


@needs_epoll
def test_a_timer_is_not_rounded_to_milliseconds(loop: asyncio.AbstractEventLoop) -> None:
    async def best() -> float:
        # The best of many: on a busy machine any of them may be late, but rounding makes all of them late.
        return min([await lateness_s() for _ in range(50)])

    assert loop.run_until_complete(best()) < 0.0006


@needs_epoll
def test_a_short_wait_is_a_select_on_the_epoll(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = waits_of(loop, monkeypatch)

    assert waits
    assert 0 < max(waits) <= DELAY_S


@needs_epoll
def test_a_file_descriptor_that_select_cannot_take_leaves_the_wait_to_epoll(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "_FD_SETSIZE", 0)

    assert waits_of(loop, monkeypatch) == []


def test_without_epoll_asyncio_makes_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(selectors, "EpollSelector", raising=False)
    module = runpy.run_path(thread.__file__)

    made = module["new_event_loop"]()

    try:
        assert "_PreciseSelector" not in module
        assert made.run_until_complete(asyncio.sleep(0, "done")) == "done"
    finally:
        made.close()
