"""A service made of services."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    CompositeService,
    Event,
    EventDiscardedError,
    Service,
    ServiceState,
    ServiceStateError,
)

from ...kit import Work

TIMEOUT_S = 60.0


class Child(Service):
    """Writes its hooks into the test's log, and does in each what the test says."""

    def __init__(self, name: str, log: list[str], **hooks: Callable[[], Any]) -> None:
        super().__init__(name)
        self.log = log
        self.hooks = hooks

    def service_init(self, config: Any) -> None:
        self._run("init")

    def service_start(self) -> None:
        self._run("start")

    def service_stop(self) -> None:
        self._run("stop")

    def _run(self, hook: str) -> None:
        self.log.append(f"{hook} {self.name}")
        self.hooks.get(hook, lambda: None)()


def fail(message: str = "lost") -> None:
    raise LookupError(message)


def composite_of(*children: Service) -> CompositeService:
    composite = CompositeService("composite")
    for child in children:
        composite.add_service(child)
    return composite


@pytest.fixture
def log() -> list[str]:
    return []


def test_children_are_inited_and_started_in_order_and_stopped_in_reverse(log: list[str]) -> None:
    composite = composite_of(Child("a", log), Child("b", log))

    with composite:
        pass

    assert log == ["init a", "init b", "start a", "start b", "stop b", "stop a"]
    assert [child.state for child in composite.services] == [ServiceState.STOPPED] * 2


def test_children_get_the_config(log: list[str]) -> None:
    child = Child("a", log)

    composite_of(child).init({"key": 1})

    assert child.config == {"key": 1}


def test_when_a_child_fails_to_init_it_alone_is_stopped(log: list[str]) -> None:
    untouched = Child("c", log)
    composite = composite_of(Child("a", log), Child("b", log, init=fail), untouched)

    with pytest.raises(LookupError) as caught:
        composite.init()

    assert log == ["init a", "init b", "stop b"]
    assert untouched.state is ServiceState.NOTINITED
    assert composite.state is ServiceState.STOPPED
    assert composite.failure_cause is caught.value
    assert composite.failure_state is ServiceState.INITED


def test_when_a_child_fails_to_start_those_that_were_started_are_stopped(log: list[str]) -> None:
    composite = composite_of(Child("a", log), Child("b", log, start=fail), Child("c", log))
    composite.init()
    log.clear()

    with pytest.raises(LookupError):
        composite.start()

    assert log == ["start a", "start b", "stop b", "stop a"]
    assert composite.services[2].state is ServiceState.INITED


def test_a_dispatcher_that_was_never_started_ends_with_its_composite(log: list[str]) -> None:
    """It holds what was posted to it, and its journal."""
    central = AsyncDispatcher(name="central")
    composite = composite_of(composite_of(Child("a", log, start=fail), central))
    composite.init()
    answer = central.ask(Event(Work.DO))

    with pytest.raises(LookupError):
        composite.start()

    assert central.is_stopped()
    assert central.stats().discarded == 1
    assert isinstance(answer.exception(0), EventDiscardedError)


def test_when_children_fail_to_stop_all_are_tried_and_the_first_error_is_raised(
    log: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    composite = composite_of(
        Child("a", log, stop=lambda: fail("of a")), Child("b", log), Child("c", log, stop=lambda: fail("of c"))
    )
    composite.init()
    composite.start()
    log.clear()

    with pytest.raises(LookupError, match="of c"):
        composite.stop()

    assert log == ["stop c", "stop b", "stop a"]
    assert "composite: stopping c failed" in caplog.text
    assert "composite: stopping a failed" in caplog.text
    assert composite.wait_for_service_to_stop(0)


def test_a_composite_that_was_never_inited_stops_no_child(log: list[str]) -> None:
    composite = composite_of(Child("a", log))

    composite.stop()

    assert log == []


def test_a_child_that_was_stopped_before_is_passed_over(log: list[str]) -> None:
    child = Child("a", log)
    composite = composite_of(child, Child("b", log))
    composite.init()
    composite.start()
    child.stop()
    log.clear()

    composite.stop()

    assert log == ["stop b"]


def test_a_child_that_is_started_already_is_refused_by_init(log: list[str]) -> None:
    child = Child("a", log)
    child.init()
    child.start()

    with pytest.raises(ServiceStateError, match="a: cannot go from STARTED to INITED"):
        composite_of(child).init()

    assert child.state is ServiceState.STOPPED


def test_a_child_may_stop_the_composite_while_it_starts(log: list[str]) -> None:
    composite = composite_of(Child("a", log, start=lambda: composite.stop()), Child("b", log))
    composite.init()
    log.clear()

    composite.start()

    assert log == ["start a", "stop a"]
    assert composite.state is ServiceState.STOPPED


def test_a_child_added_while_the_others_start_is_stopped_with_them_but_not_started(log: list[str]) -> None:
    late = Child("late", log)
    late.start()
    composite = composite_of(Child("a", log, start=lambda: composite.add_service(late)))

    with composite:
        pass

    assert log == ["init late", "start late", "init a", "start a", "stop late", "stop a"]


def test_composites_nest(log: list[str]) -> None:
    inner = composite_of(Child("b", log), Child("c", log))

    with composite_of(Child("a", log), inner, Child("d", log)):
        log.clear()

    assert log == ["stop d", "stop c", "stop b", "stop a"]


def test_children_that_many_threads_add_are_all_kept(log: list[str]) -> None:
    composite, threads, children = CompositeService(), 4, 100
    barrier = threading.Barrier(threads)

    def add() -> None:
        barrier.wait(TIMEOUT_S)
        for number in range(children):
            composite.add_service(Child(str(number), log))

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(add) for _ in range(threads)]:
            done.result(TIMEOUT_S)

    assert len(composite.services) == threads * children


def test_a_service_is_ending_from_the_moment_at_which_a_composite_around_it_stops() -> None:
    log: list[str] = []
    first, inner, outer = Child("first", log), CompositeService("inner"), CompositeService("outer")
    seen = []
    last = Child("last", log, stop=lambda: seen.append((first.is_ending(), last.is_ending(), first.state)))
    inner.add_service(first)
    outer.add_service(inner)
    outer.add_service(last)
    outer.init()
    outer.start()
    assert not first.is_ending()

    outer.stop()

    assert seen == [(True, True, ServiceState.STARTED)]
    assert first.is_ending()


def test_a_service_that_is_stopped_by_itself_ends_alone() -> None:
    first, second, both = Child("first", []), Child("second", []), CompositeService("both")
    both.add_service(first)
    both.add_service(second)
    both.init()

    first.stop()

    assert (first.is_ending(), second.is_ending(), both.is_ending()) == (True, False, False)


def test_a_service_cannot_be_inside_itself() -> None:
    """The cycle was found by a RecursionError, in `init` or in a probe."""
    outer, middle, inner = CompositeService("outer"), CompositeService("middle"), CompositeService("inner")
    outer.add_service(middle)
    middle.add_service(inner)

    with pytest.raises(
        ValueError, match="adding outer would make a cycle of services: inner -> outer -> middle -> inner"
    ):
        inner.add_service(outer)
    with pytest.raises(ValueError, match="adding outer would make a cycle of services: outer -> outer"):
        outer.add_service(outer)

    assert (inner.services, outer.services, outer.parent) == ((), (middle,), None)


def test_of_two_threads_that_put_two_services_into_each_other_one_is_refused() -> None:
    one, two, barrier = CompositeService("one"), CompositeService("two"), threading.Barrier(2, timeout=TIMEOUT_S)

    def add(whole: CompositeService, part: Service) -> bool:
        barrier.wait()
        try:
            whole.add_service(part)
        except ValueError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        added = list(pool.map(add, (one, two), (two, one), timeout=TIMEOUT_S))

    assert sorted(added) == [False, True]


def test_a_service_belongs_to_one_composite_that_has_not_stopped() -> None:
    child, first, second = Child("child", []), CompositeService("first"), CompositeService("second")
    first.add_service(child)

    with pytest.raises(ValueError, match="first: child was added already"):
        first.add_service(child)
    with pytest.raises(ValueError, match="second: child belongs to first already"):
        second.add_service(child)
    first.stop()
    second.add_service(child)

    assert (first.services, second.services, child.parent) == ((child,), (child,), second)


def test_only_a_service_can_be_added() -> None:
    with pytest.raises(TypeError, match="daemon: add_service takes a Service, not 'orders'"):
        CompositeService("daemon").add_service("orders")  # type: ignore[arg-type]


def test_a_composite_is_not_kept_alive_by_its_services() -> None:
    first = Child("first", [])
    CompositeService("gone").add_service(first)

    assert not first.is_ending()
