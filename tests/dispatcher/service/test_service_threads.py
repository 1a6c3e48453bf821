"""The life cycle of a service that several threads, or its own hooks, want to change at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest

from dispatcher import Service, ServiceState, ServiceStateError

from ...kit import TIMEOUT_S, Gate, in_threads
from ...kit.services import Recorder, fail

NOTINITED, INITED, STARTED, STOPPED = ServiceState


@pytest.mark.parametrize(
    ("hook", "hooks"), [("init", ["init", "stop"]), ("start", ["init", "start", "stop"]), ("stop", ["stop"])]
)
def test_a_stop_from_inside_a_hook_is_carried_out_after_it(hook: str, hooks: list[str]) -> None:
    def stop() -> None:
        service.stop()
        service.calls.append("stop returned")

    service = Recorder(**{hook: stop})
    states: list[ServiceState] = []
    service.register_service_listener(lambda changed: states.append(changed.state))

    for call in {"init": (service.init,), "start": (service.init, service.start), "stop": (service.stop,)}[hook]:
        call()

    position = hooks.index(hook) + 1
    assert service.calls == [*hooks[:position], "stop returned", *hooks[position:]]
    assert states[-1] is STOPPED
    assert STARTED not in states
    assert service.wait_for_service_to_stop(0)


@pytest.mark.parametrize(("hook", "call"), [("init", Service.init), ("start", Service.start)])
def test_a_stop_from_another_thread_does_not_wait_for_a_hook_and_is_carried_out_after_it(
    gate: Gate, hook: str, call: Callable[[Service], None]
) -> None:
    stopped_on: list[int] = []
    service = Recorder(**{hook: partial(gate.handle, hook), "stop": lambda: stopped_on.append(threading.get_ident())})
    if hook == "start":
        service.init()
    with ThreadPoolExecutor(1) as pool:
        entering = pool.submit(call, service)
        assert gate.entered.wait(TIMEOUT_S)

        service.stop()
        state, stopped_early, calls = service.state, service.wait_for_service_to_stop(0), list(service.calls)
        gate.opened.set()
        entering.result(TIMEOUT_S)

    assert (state, stopped_early) == (STOPPED, False)
    assert calls[-1] == hook
    assert service.calls == [*calls, "stop"]
    assert stopped_on != [threading.get_ident()]
    assert service.wait_for_service_to_stop(TIMEOUT_S)


def test_a_start_waits_while_another_thread_is_in_the_init_hook(gate: Gate) -> None:
    """Both hooks ran at once: the state is INITED as soon as the hook of init begins."""
    service = Recorder(init=lambda: (gate.handle(None), service.calls.append("init ends")))
    with ThreadPoolExecutor(2) as pool:
        initing = pool.submit(service.init)
        assert gate.entered.wait(TIMEOUT_S)

        starting = pool.submit(service.start)
        with pytest.raises(TimeoutError):
            starting.result(0.02)
        gate.opened.set()
        starting.result(TIMEOUT_S)
        initing.result(TIMEOUT_S)

    assert service.calls == ["init", "init ends", "start"]
    assert service.state is STARTED


@pytest.mark.parametrize("end", ["failure", "stop"])
def test_a_start_that_waits_for_an_init_that_comes_to_nothing_is_refused(gate: Gate, end: str) -> None:
    service = Recorder(init=lambda: (gate.handle(None), fail() if end == "failure" else service.stop()))
    with ThreadPoolExecutor(2) as pool:
        initing = pool.submit(service.init)
        assert gate.entered.wait(TIMEOUT_S)

        starting = pool.submit(service.start)
        gate.opened.set()

        with pytest.raises(ServiceStateError, match="from STOPPED to STARTED"):
            starting.result(TIMEOUT_S)
        assert (initing.exception(TIMEOUT_S) is not None) is (end == "failure")

    assert service.calls == ["init", "stop"]


@pytest.mark.parametrize("longest_s", [None, 0.02])
def test_a_second_stop_waits_for_the_first_for_a_limited_time(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, longest_s: float | None
) -> None:
    """It returned before the stop hook had ended. The first one may be waiting for this very thread."""
    service = Recorder(stop=partial(gate.handle, None))
    if longest_s is not None:
        monkeypatch.setattr(service, "_longest_stop_s", lambda: longest_s)
    with ThreadPoolExecutor(2) as pool:
        stopping = pool.submit(service.stop)
        assert gate.entered.wait(TIMEOUT_S)

        second = pool.submit(service.stop)
        if longest_s is None:
            with pytest.raises(TimeoutError):
                second.result(0.02)
        else:
            second.result(TIMEOUT_S)
            assert not service.wait_for_service_to_stop(0)
        gate.opened.set()
        second.result(TIMEOUT_S)
        stopping.result(TIMEOUT_S)

    assert service.wait_for_service_to_stop(0)
    assert service.calls == ["stop"]


def test_each_hook_runs_at_most_once_and_in_order_when_many_threads_start_and_stop_a_service() -> None:
    def call(step: Callable[[], object]) -> None:
        with suppress(ServiceStateError):
            step()

    for _ in range(100):
        service = Recorder()
        in_threads(*(partial(call, step) for step in [service.init, service.start, service.stop] * 2))
        assert service.wait_for_service_to_stop(TIMEOUT_S)
        assert service.calls in (["stop"], ["init", "stop"], ["init", "start", "stop"])
        assert service.state is STOPPED
