"""`stop` called by a signal handler, which may interrupt its thread at any place where CPython looks for signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import pytest

from dispatcher import AsyncDispatcher, Service, ServiceState, ServiceStateError

from ...kit import TIMEOUT_S, no_thread_is_left
from ...kit.interrupting import interrupt
from ...kit.services import Recorder

pytestmark = pytest.mark.long


def interrupted_lives(make: Callable[[], Service]) -> Iterator[Service]:
    """A service after its life, once for each place in it that a stop interrupted."""
    for at in count(1):
        service = make()
        if interrupt(partial(live, service), at, service.stop) < at:
            return
        yield service


def live(service: Service) -> None:
    for step in (service.init, service.start, service.stop):
        try:
            step()
        except ServiceStateError:
            assert service.in_state(ServiceState.STOPPED)


@pytest.mark.timeout(60)
def test_a_stop_by_a_signal_handler_runs_the_stop_hook_once_and_nothing_after_it() -> None:
    ends = []
    for service in interrupted_lives(Recorder):
        assert service.wait_for_service_to_stop(0)
        ends.append(tuple(service.calls))  # type: ignore[attr-defined]

    assert set(ends) == {("stop",), ("init", "stop"), ("init", "start", "stop")}
    assert len(ends) > 50


@pytest.mark.timeout(60)
def test_a_stop_by_a_signal_handler_ends_a_dispatcher_wherever_it_comes() -> None:
    with no_thread_is_left("dispatcher-monitor"):
        for service in interrupted_lives(AsyncDispatcher):
            assert service.wait_for_service_to_stop(TIMEOUT_S)
