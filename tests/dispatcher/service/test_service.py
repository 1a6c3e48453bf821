"""The life cycle of one service: states, hooks, failures, listeners. Of several: test_composite_service.py."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher import Service, ServiceState, ServiceStateError

from ...kit.services import Recorder, fail

NOTINITED, INITED, STARTED, STOPPED = ServiceState


def service_in(state: ServiceState) -> Recorder:
    service = Recorder()
    for bring_there in {
        NOTINITED: (),
        INITED: (service.init,),
        STARTED: (service.init, service.start),
        STOPPED: (service.init, service.start, service.stop),
    }[state]:
        bring_there()
    service.calls.clear()
    return service


# -- every (state, call) pair ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "call", "after", "hooks"),
    [
        (NOTINITED, "init", INITED, ["init"]),
        (NOTINITED, "start", STARTED, ["init", "start"]),
        (NOTINITED, "stop", STOPPED, ["stop"]),
        (INITED, "init", INITED, []),
        (INITED, "start", STARTED, ["start"]),
        (INITED, "stop", STOPPED, ["stop"]),
        (STARTED, "start", STARTED, []),
        (STARTED, "stop", STOPPED, ["stop"]),
        (STOPPED, "stop", STOPPED, []),
    ],
)
def test_an_allowed_call_changes_the_state_and_runs_its_hook_once(
    state: ServiceState, call: str, after: ServiceState, hooks: list[str]
) -> None:
    service = service_in(state)

    getattr(service, call)()

    assert service.state is after
    assert service.calls == hooks


@pytest.mark.parametrize(
    ("state", "call", "message"),
    [
        (STARTED, "init", "recorder: cannot go from STARTED to INITED. It is already running."),
        (STOPPED, "init", "cannot go from STOPPED to INITED. A stopped service does not come back: make a new one."),
        (STOPPED, "start", "cannot go from STOPPED to STARTED. A stopped service does not come back: make a new one."),
    ],
)
def test_any_other_call_is_refused_and_changes_nothing(state: ServiceState, call: str, message: str) -> None:
    service = service_in(state)

    with pytest.raises(ServiceStateError) as caught:
        getattr(service, call)()

    assert message in str(caught.value)
    assert caught.value.state is state
    assert service.state is state
    assert service.calls == []
    assert service.failure_cause is None


@pytest.mark.parametrize("state", ServiceState)
def test_waiting_for_the_stop_says_whether_it_has_come(state: ServiceState) -> None:
    assert service_in(state).wait_for_service_to_stop(0) is (state is STOPPED)


@pytest.mark.parametrize(
    ("state", "hooks"), [(NOTINITED, ["init", "start"]), (INITED, ["start"]), (STARTED, [])], ids=str
)
def test_a_with_block_starts_the_service_and_stops_it(state: ServiceState, hooks: list[str]) -> None:
    service = service_in(state)

    with service as entered:
        inside = (entered, service.state, list(service.calls))

    assert inside == (service, STARTED, hooks)
    assert service.state is STOPPED
    assert service.calls == [*hooks, "stop"]


def test_a_with_block_does_not_restart_a_stopped_service() -> None:
    service = service_in(STOPPED)

    with pytest.raises(ServiceStateError), service:
        pass

    assert service.calls == []


def test_a_with_block_stops_the_service_when_its_body_raises() -> None:
    service = Recorder()

    with pytest.raises(LookupError), service:
        fail()

    assert service.state is STOPPED
    assert service.failure_cause is None


def test_the_state_changes_before_the_hook_runs() -> None:
    seen: list[ServiceState] = []
    service = Recorder(**dict.fromkeys(("init", "start", "stop"), lambda: seen.append(service.state)))

    with service:
        pass

    assert seen == [INITED, STARTED, STOPPED]


def test_init_hands_its_config_to_the_hook_and_keeps_it() -> None:
    class Configured(Service):
        def service_init(self, config: Any) -> None:
            self.seen = (config, self.config)

    service = Configured()
    service.init({"a": 1})

    assert service.seen == ({"a": 1}, {"a": 1})
    assert service.config == {"a": 1}


def test_a_service_without_a_name_is_named_after_its_class() -> None:
    assert Service().name == "Service"
    assert repr(Service("mine")) == "<Service mine NOTINITED>"
    assert service_in(STARTED).in_state(INITED, STARTED)
    assert not service_in(STARTED).in_state(INITED, STOPPED)


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "state", "hooks"), [("init", INITED, ["init", "stop"]), ("start", STARTED, ["init", "start", "stop"])]
)
@pytest.mark.parametrize("error", [LookupError("lost"), KeyboardInterrupt()], ids=repr)
def test_a_service_that_fails_to_init_or_start_is_stopped(
    hook: str, state: ServiceState, hooks: list[str], error: BaseException
) -> None:
    def fail_with() -> None:
        raise error

    service = Recorder(**{hook: fail_with})

    with pytest.raises(type(error)) as caught, service:
        pass

    assert caught.value is error
    assert service.state is STOPPED
    assert service.calls == hooks
    assert service.failure_cause is error
    assert service.failure_state is state
    assert service.wait_for_service_to_stop(0)


def test_the_error_of_a_failed_start_outlives_the_error_of_its_stop(caplog: pytest.LogCaptureFixture) -> None:
    service = Recorder(start=fail, stop=lambda: 1 / 0)
    service.init()

    with pytest.raises(LookupError):
        service.start()

    assert isinstance(service.failure_cause, LookupError)
    assert service.wait_for_service_to_stop(0)
    assert "recorder: stop after a failed STARTED failed too: ZeroDivisionError" in caplog.text


def test_a_stop_that_fails_raises_and_is_a_stop_all_the_same() -> None:
    service = Recorder(stop=fail)

    with pytest.raises(LookupError):
        service.stop()
    service.stop()

    assert service.calls == ["stop"]
    assert service.state is STOPPED
    assert service.failure_state is STOPPED
    assert service.wait_for_service_to_stop(0)


# -- listeners -------------------------------------------------------------------------------------------------------


def test_listeners_are_notified_of_each_change_once_its_hook_has_run() -> None:
    class Listener:
        def __init__(self) -> None:
            self.notified: list[tuple[ServiceState, list[str]]] = []

        def state_changed(self, service: Recorder) -> None:
            self.notified.append((service.state, list(service.calls)))

    service, listener = Recorder(), Listener()
    states: list[ServiceState] = []
    service.register_service_listener(listener)
    service.register_service_listener(lambda changed: states.append(changed.state))

    for call in (service.init, service.init, service.start, service.start, service.stop, service.stop):
        call()

    assert states == [INITED, STARTED, STOPPED]
    assert listener.notified == [
        (INITED, ["init"]),
        (STARTED, ["init", "start"]),
        (STOPPED, ["init", "start", "stop"]),
    ]


@pytest.mark.parametrize(
    ("hook", "notified"), [("init", [STOPPED]), ("start", [INITED, STOPPED]), ("stop", [INITED, STARTED, STOPPED])]
)
def test_after_a_failed_hook_listeners_are_notified_of_the_stop_only(hook: str, notified: list[ServiceState]) -> None:
    service = Recorder(**{hook: fail})
    states: list[ServiceState] = []
    service.register_service_listener(lambda changed: states.append(changed.state))

    with pytest.raises(LookupError), service:
        pass

    assert states == notified


def test_listeners_are_not_notified_of_a_state_that_the_hook_has_left() -> None:
    service = Recorder(init=lambda: service.start())
    states: list[ServiceState] = []
    service.register_service_listener(lambda changed: states.append(changed.state))

    service.init()

    assert service.calls == ["init", "start"]
    assert states == [STARTED]


def test_a_listener_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    service = Recorder()
    states: list[ServiceState] = []
    service.register_service_listener(lambda _: fail())
    service.register_service_listener(lambda changed: states.append(changed.state))

    service.init()

    assert states == [INITED]
    assert service.failure_cause is None
    assert "recorder: a service listener failed" in caplog.text
