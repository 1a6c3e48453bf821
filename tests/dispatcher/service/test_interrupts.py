"""A KeyboardInterrupt, or a signal handler's `sys.exit`, at any line of `init`, `start` or `stop`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import dispatcher
from dispatcher import AsyncDispatcher, CompositeService, DispatcherConfig, DispatcherGroup, Service, ServiceState

from ...kit import TIMEOUT_S, Numbered, Work, no_thread_is_left
from ...kit.services import Recorder

pytestmark = pytest.mark.long

FILES = frozenset(
    str(Path(dispatcher.__file__).parent / name)
    for name in ("service.py", "async_dispatcher.py", "groups.py", "dispatching/stopping.py")
)
"""Where the interrupts come."""
LOCKED = ("Drain.", "Service._change")
"""Where none comes: the line of a `with` is also that of the lock's release, where CPython runs no signal handler."""


class Interrupt:
    """Raises once, in this thread: before the line `number` of those that it runs in `files`."""

    def __init__(self, number: int, files: frozenset[str]) -> None:
        self._left = number
        self._files = files
        self.where = ""

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._files or frame.f_code.co_qualname.startswith(LOCKED):
            return None
        if event == "line" and not self.where:
            self._left -= 1
            if self._left < 0:
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                raise KeyboardInterrupt
        return self._trace

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


def one() -> Service:
    made = AsyncDispatcher(DispatcherConfig(drain_timeout_s=5), name="one")
    made.register(Work, lambda _: None)
    return made


def tree() -> Service:
    daemon = CompositeService("daemon")
    for part in (Recorder(), one(), Recorder()):
        daemon.add_service(part)
    return daemon


def group() -> Service:
    return DispatcherGroup([AsyncDispatcher(name=f"member-{number}") for number in range(2)], name="group")


def was_started(part: Service) -> bool:
    return part.in_state(ServiceState.STARTED) or (isinstance(part, Recorder) and "start" in part.calls)


def parts(service: Service) -> list[Service]:
    return [service, *(service.services if isinstance(service, CompositeService) else ())]


@pytest.mark.parametrize("step", ["init", "start", "stop"])
@pytest.mark.parametrize("make", [Recorder, one, tree, group])
def test_an_interrupt_leaves_a_service_that_is_stopped_or_that_stop_ends(
    make: Callable[[], Service], step: str
) -> None:
    """At 25 of 59 lines, `stop` did nothing from then on; some dispatchers still accepted events."""
    number = 0
    with no_thread_is_left("dispatcher-monitor"):
        while True:
            service = make()
            if step != "init":
                service.init()
            if step == "stop":
                service.start()
            interrupt = Interrupt(number, FILES)
            with contextlib.suppress(KeyboardInterrupt), interrupt:
                getattr(service, step)()

            service.stop()

            assert service.wait_for_service_to_stop(TIMEOUT_S), interrupt.where
            assert service.in_state(ServiceState.STOPPED)
            for part in parts(service):
                assert part.in_state(ServiceState.STOPPED) or not was_started(part), interrupt.where
                if isinstance(part, AsyncDispatcher) and part.in_state(ServiceState.STOPPED):
                    assert part.is_stopped(), interrupt.where
                    assert not part.event_handler.handle(Numbered()), interrupt.where
            if not interrupt.where:
                break
            number += 1
    assert number >= 5


def test_an_interrupt_amid_one_child_s_stop_still_stops_the_others_and_its_hook_runs_again() -> None:
    def interrupt() -> None:
        if second.calls.count("stop") == 1:
            raise KeyboardInterrupt

    first, second = Recorder(), Recorder(stop=interrupt)
    daemon = CompositeService()
    daemon.add_service(first)
    daemon.add_service(second)
    daemon.init()
    daemon.start()

    with pytest.raises(KeyboardInterrupt):
        daemon.stop()
    at_once = first.calls[-1], second.wait_for_service_to_stop(0)
    daemon.stop()
    daemon.stop()

    assert at_once == ("stop", False)
    assert daemon.wait_for_service_to_stop(0)
    assert (first.calls.count("stop"), second.calls.count("stop")) == (1, 2)
