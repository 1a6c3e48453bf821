"""Asks the handler thread why applications wait: seldom, and about many applications at once.

An answer looks at the scheduler's books, so the handler thread is asked at most ten times a second, about a limited
number of applications. Requests that arrive in between are answered by the next question. No page waits for a handler
thread that hangs: it shows the last answers, and says so where it has none.

Threads: the loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, NamedTuple

from dispatcher.errors import DispatcherError
from statemachines.resourcemanager.reports import WaitingReport

EVERY_S: Final = 0.1
DEADLINE_S: Final = 1.0
PATIENCE_S: Final = 0.03
"""A question that the handler thread has had for longer holds up no page."""
MOST: Final = 100
"""Applications in one question."""

FRESH_S: Final = 1.0
KEPT: Final = 5000
"""Most applications whose last report is kept, for `known`."""
KEPT_S: Final = 10.0
"""The first answer this long after a report drops it, so that it serves longer only while the handler thread hangs."""

_Asked = asyncio.Future[WaitingReport | None]


class Known(NamedTuple):
    """What a page shows of why applications wait."""

    reports: Mapping[str, WaitingReport]
    """By application."""
    late: frozenset[str]
    """Applications about which the handler thread has not answered yet."""


class WaitingReports:
    """`ask`: ClientRMService.get_waiting_later. `is_hanging`: whether a handler is known to hang."""

    def __init__(
        self,
        ask: Callable[[Collection[str]], Future[list[WaitingReport]]],
        is_hanging: Callable[[], bool] = lambda: False,
    ) -> None:
        self._ask = ask
        self._is_hanging = is_hanging
        self._wanted: dict[str, _Asked] = {}  # by application: those for the next questions, oldest first
        self.kept: dict[str, tuple[float, WaitingReport]] = {}  # by application, with the loop's time; oldest first
        self._next_s = 0.0  # not before this, by the loop's clock, is the next question
        self._asked_s: float | None = None  # when the question was put that the handler thread has now, by that clock
        self._asking: asyncio.Task[None] | None = None

    async def reports(self, app_ids: Iterable[str]) -> Mapping[str, WaitingReport]:
        """What these applications wait for, by id; unknown ones are left out.

        Raises:
            TimeoutError: the handler thread has not answered within a second.
            RejectedExecutionError: the resource manager has stopped.
        """
        asked = self._put(app_ids)
        if not asked:
            return {}
        _, late = await asyncio.wait(asked.values(), timeout=DEADLINE_S)
        if late:
            raise TimeoutError(f"the handler thread has not answered within {DEADLINE_S:g} s")
        return {app_id: report for app_id, future in asked.items() if (report := future.result()) is not None}

    async def known(self, app_ids: Iterable[str]) -> Known:
        """What these applications wait for, as answered in the last second; earlier while the handler thread hangs.

        Waits for answers no longer than a handler thread that does not hang takes for them.
        """
        now_s, wanted = asyncio.get_running_loop().time(), tuple(app_ids)
        stale = [each for each in wanted if each not in self.kept or now_s - self.kept[each][0] >= FRESH_S]
        asked = self._put(stale)
        await self._patiently(asked.values())
        answered = set(wanted).difference(stale)
        for app_id, future in asked.items():
            if future.done():
                with suppress(TimeoutError, DispatcherError):
                    future.result()
                    answered.add(app_id)
        reports = {each: self.kept[each][1] for each in wanted if each in self.kept}
        return Known(reports, frozenset(each for each in wanted if each not in answered and each not in reports))

    def _put(self, app_ids: Iterable[str]) -> Mapping[str, _Asked]:
        """Add these applications to the next question."""
        loop = asyncio.get_running_loop()
        asked = {app_id: self._wanted.setdefault(app_id, loop.create_future()) for app_id in app_ids}
        if asked and (self._asking is None or self._asking.done()):
            self._asking = loop.create_task(self._work())
        return asked

    async def _patiently(self, asked: Collection[_Asked]) -> None:
        """Wait for these answers, unless the handler thread hangs or takes too long over a question."""
        loop, pending = asyncio.get_running_loop(), set(asked)
        deadline_s = loop.time() + DEADLINE_S
        while pending and not self._is_hanging():
            now_s = loop.time()
            put_s = self._asked_s if self._asked_s is not None else max(now_s, self._next_s)
            left_s = min(put_s + PATIENCE_S, deadline_s) - now_s
            if left_s <= 0:
                return
            _, pending = await asyncio.wait(pending, timeout=left_s)

    def _forget(self, before_s: float) -> None:
        """Forget the reports from before that time, and the oldest beyond `KEPT`."""
        surplus = len(self.kept) - KEPT
        for number, (app_id, (at_s, _)) in enumerate(list(self.kept.items())):
            if number >= surplus and at_s >= before_s:
                return
            del self.kept[app_id]

    async def _work(self) -> None:
        """Ask until no reader waits for an answer."""
        loop = asyncio.get_running_loop()
        while self._wanted:
            await asyncio.sleep(max(0.0, self._next_s - loop.time()))
            self._next_s = loop.time() + EVERY_S
            asked = {app_id: self._wanted.pop(app_id) for app_id in list(self._wanted)[:MOST]}
            self._asked_s = loop.time()
            await self._answer(asked)
            self._asked_s = None

    async def _answer(self, asked: Mapping[str, _Asked]) -> None:
        now_s = asyncio.get_running_loop().time()
        try:
            found = await asyncio.wait_for(asyncio.wrap_future(self._ask(tuple(asked))), DEADLINE_S)
        except Exception as error:
            for future in asked.values():
                future.set_exception(error)
                future.exception()  # its client may have left
            return
        reports = {report.application_id: report for report in found}
        for app_id, future in asked.items():
            self.kept.pop(app_id, None)
            if app_id in reports:
                self.kept[app_id] = now_s, reports[app_id]
            future.set_result(reports.get(app_id))
        self._forget(now_s - KEPT_S)
