"""`stop` called by a signal handler, which may interrupt its thread anywhere: between any two lines of a service."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import dispatcher.service
from dispatcher import AsyncDispatcher, Service, ServiceState

from ...kit import TIMEOUT_S, no_thread_is_left
from ...kit.services import Recorder

pytestmark = pytest.mark.long


class Interruption:
    """Calls `action` once, as a signal handler would: before one bytecode or line of `dispatcher.service`."""

    def __init__(self, action: Callable[[], None], number: int) -> None:
        self._action = action
        self._left = number
        self.has_come = False

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != dispatcher.service.__file__:
            return None
        frame.f_trace_opcodes = True  # Python 3.12 calls this for lines even so
        if event in ("line", "opcode") and not self.has_come:
            self._left -= 1
            if self._left < 0:
                self.has_come = True
                self._action()
        return self.trace

    def __enter__(self) -> None:
        sys.settrace(self.trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


def interruptions(service_of: Callable[[], Service], run: Callable[[Service], Any]) -> Iterator[Service]:
    """The service after `run`, once for each place in it that a stop interrupted."""
    number = 0
    while True:
        service = service_of()
        interruption = Interruption(service.stop, number)
        with interruption:
            run(service)
        if not interruption.has_come:
            return
        yield service
        number += 1


def live(service: Service) -> None:
    for step in (service.init, service.start, service.stop):
        try:
            step()
        except dispatcher.ServiceStateError:
            assert service.in_state(ServiceState.STOPPED)


@pytest.mark.timeout(60)
def test_a_stop_by_a_signal_handler_runs_the_stop_hook_once_and_nothing_after_it() -> None:
    ends = []
    for service in interruptions(Recorder, live):
        assert service.wait_for_service_to_stop(0)
        ends.append(tuple(service.calls))  # type: ignore[attr-defined]

    assert set(ends) == {("stop",), ("init", "stop"), ("init", "start", "stop")}
    assert len(ends) > 50


@pytest.mark.timeout(60)
def test_a_stop_by_a_signal_handler_ends_a_dispatcher_wherever_it_comes() -> None:
    with no_thread_is_left("dispatcher-monitor"):
        for service in interruptions(AsyncDispatcher, live):
            assert service.wait_for_service_to_stop(TIMEOUT_S)
