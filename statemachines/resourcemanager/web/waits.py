"""Asks the handler thread why applications wait: seldom, and about many applications at once.

An answer looks at the scheduler's books, so the handler thread is asked at most ten times a second, about a limited
number of applications. Requests that arrive in between are answered by the next question.

Threads: the loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from dispatcher.errors import DispatcherError
from statemachines.resourcemanager.reports import WaitingReport

EVERY_S: Final = 0.1
DEADLINE_S: Final = 1.0
MOST: Final = 100
"""Applications in one question."""

FRESH_S: Final = 1.0
KEPT: Final = 5000
"""Most applications whose last report is kept, for `known`."""
KEPT_S: Final = 10.0
"""The first answer this long after a report drops it, so that it serves longer only while the handler thread hangs."""

_Asked = asyncio.Future[WaitingReport | None]


class Waits:
    """`ask`: ClientRMService.get_waiting_later."""

    def __init__(self, ask: Callable[[Collection[str]], Future[list[WaitingReport]]]) -> None:
        self._ask = ask
        self._wanted: dict[str, _Asked] = {}  # by application: those for the next questions, oldest first
        self.kept: dict[str, tuple[float, WaitingReport]] = {}  # by application, with the loop's time; oldest first
        self._next_s = 0.0  # not before this, by the loop's clock, is the next question
        self._asking: asyncio.Task[None] | None = None

    async def reports(self, app_ids: Iterable[str]) -> Mapping[str, WaitingReport]:
        """What these applications wait for, by id; unknown ones are left out.

        Raises:
            TimeoutError: the handler thread has not answered within a second.
            RejectedExecutionError: the resource manager has stopped.
        """
        loop = asyncio.get_running_loop()
        asked = {app_id: self._wanted.setdefault(app_id, loop.create_future()) for app_id in app_ids}
        if not asked:
            return {}
        if self._asking is None or self._asking.done():
            self._asking = loop.create_task(self._work())
        _, late = await asyncio.wait(asked.values(), timeout=DEADLINE_S)
        if late:
            raise TimeoutError(f"the handler thread has not answered within {DEADLINE_S:g} s")
        return {app_id: report for app_id, future in asked.items() if (report := future.result()) is not None}

    async def known(self, app_ids: Iterable[str]) -> Mapping[str, WaitingReport]:
        """As `reports`, but from answers of the last second, and from older ones while the handler thread hangs."""
        now_s, wanted = asyncio.get_running_loop().time(), tuple(app_ids)
        stale = [each for each in wanted if each not in self.kept or now_s - self.kept[each][0] >= FRESH_S]
        with suppress(TimeoutError, DispatcherError):
            found = await self.reports(stale)
            for each in stale:
                self.kept.pop(each, None)
                if each in found:
                    self.kept[each] = now_s, found[each]
            if stale:
                self._forget(now_s - KEPT_S)
        return {each: self.kept[each][1] for each in wanted if each in self.kept}

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
            await self._answer(asked)

    async def _answer(self, asked: Mapping[str, _Asked]) -> None:
        try:
            found = await asyncio.wait_for(asyncio.wrap_future(self._ask(tuple(asked))), DEADLINE_S)
        except Exception as error:
            for future in asked.values():
                future.set_exception(error)
                future.exception()  # its client may have left
            return
        reports = {report.application_id: report for report in found}
        for app_id, future in asked.items():
            future.set_result(reports.get(app_id))
