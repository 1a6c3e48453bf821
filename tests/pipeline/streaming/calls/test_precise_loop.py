"""The loop of the calls: its timers are precise, and without epoll it is asyncio's own."""

from __future__ import annotations

import asyncio
import runpy
import select
import selectors
import threading
from typing import Any

import pytest

from pipeline.streaming.calls import thread

DELAY_S = 0.0021
"""epoll, which counts whole milliseconds, makes 3 ms of it."""


@pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="no epoll on this system")
@pytest.mark.parametrize("is_possible", [True, False])
def test_short_waits_are_selects_on_the_epoll_where_select_can_take_its_file_descriptor(
    is_possible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.get_ident()  # loops of other threads may go on
    selects: list[float] = []
    polls: list[float] = []
    wait, poll = select.select, selectors.EpollSelector.select

    def watched_select(read: Any, write: Any, error: Any, timeout: float) -> Any:
        if threading.get_ident() == here:
            selects.append(timeout)
        return wait(read, write, error, timeout)

    def watched_poll(selector: Any, timeout: float | None = None) -> Any:
        if threading.get_ident() == here:
            polls.append(timeout or 0)
        return poll(selector, timeout)

    async def wait_often() -> None:
        for _ in range(20):  # on a busy machine, one may be over before its wait
            await asyncio.sleep(DELAY_S)

    if not is_possible:
        monkeypatch.setattr(thread, "_FD_SETSIZE", 0)
    loop = thread.new_event_loop()
    monkeypatch.setattr(select, "select", watched_select)
    monkeypatch.setattr(selectors.EpollSelector, "select", watched_poll)

    loop.run_until_complete(wait_often())

    loop.close()
    used, unused = (selects, polls) if is_possible else (polls, selects)
    assert 0 < max(used) <= DELAY_S
    assert max(unused, default=0) == 0


def test_without_epoll_asyncio_makes_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(selectors, "EpollSelector", raising=False)
    module = runpy.run_path(thread.__file__)

    made = module["new_event_loop"]()

    try:
        assert "_PreciseSelector" not in module
        assert made.run_until_complete(asyncio.sleep(0, "done")) == "done"
    finally:
        made.close()
