"""A service made of services."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
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

from ...kit import Work, in_threads
from ...kit.scenarios import play
from ...kit.services import Recorder, fail


class Child(Recorder):
    """Writes its hooks into the test's log."""

    def __init__(self, name: str, log: list[str], **hooks: Callable[[], Any]) -> None:
        super().__init__(**hooks)
        self.name = name
        self.log = log

    def _run(self, hook: str) -> None:
        self.log.append(f"{hook} {self.name}")
        super()._run(hook)


class Composites:
    """Services by name, which are made as they are named first. The verbs:

        make NAME HOOK=WHAT...   a child that does something in a hook: `fails`, or another step, as in `start=stop:all`
        add WHOLE PART...        into a composite, which is made if it is not there
        init, start, stop NAME   ends quietly or with an error, which `raised` shows

    The looks: `log` of hooks since the last look, `raised`, and `state`, `ending` and `parts` of services by name.
    """

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}
        self.log: list[str] = []
        self.raised: list[str] = []

    def play(self, verb: str, *words: str) -> None:
        name, *others = words
        if verb == "make":
            does = (word.split("=") for word in others)
            self.services[name] = Child(name, self.log, **{hook: self._deed(name, what) for hook, what in does})
            return
        try:
            if verb == "add":
                whole: Any = self.services.setdefault(name, CompositeService(name))
                for part in others:
                    whole.add_service(self.services.setdefault(part, Child(part, self.log)))
            else:
                getattr(self.services[name], verb)()
        except (LookupError, ValueError, ServiceStateError) as error:
            self.raised.append(re.split("[.;,]", str(error))[0])

    def _deed(self, name: str, what: str) -> Callable[[], Any]:
        def fail() -> None:
            raise LookupError(f"of {name}")

        return fail if what == "fails" else lambda: self.play(*what.split(":"))

    def look(self, what: str) -> Iterable[object]:
        if what == "log":
            seen, self.log[:] = list(self.log), []
            return seen
        if what == "raised":
            return self.raised
        kind, _, name = what.partition("_")
        service: Any = self.services[name]
        if kind == "parts":
            return [part.name for part in service.services]
        if kind == "parent":
            return [service.parent.name]
        if kind == "failure":
            return [service.failure_cause, service.failure_state.name]
        return [service.is_ending() if kind == "ending" else service.state.name]


SCENARIOS = {
    "children are inited and started in order, and stopped in reverse": (
        "add all a b | start all | stop all -> log init_a init_b start_a start_b stop_b stop_a"
        " ; state_a STOPPED ; state_b STOPPED"
    ),
    "when a child fails to init, it alone is stopped": (
        "make b init=fails | add all a b c | init all -> log init_a init_b stop_b ; raised of_b"
        " ; state_c NOTINITED ; state_all STOPPED ; failure_all of_b INITED"
    ),
    "when a child fails to start, those that were started are stopped": (
        "make b start=fails | add all a b c | init all -> log init_a init_b init_c"
        " | start all -> log start_a start_b stop_b stop_a ; raised of_b ; state_c INITED"
    ),
    "when children fail to stop, all are tried and the first error is raised": (
        "make a stop=fails | make c stop=fails | add all a b c | start all | stop all"
        " -> log init_a init_b init_c start_a start_b start_c stop_c stop_b stop_a ; raised of_c ; state_all STOPPED"
    ),
    "a composite that was never inited stops no child": "add all a | stop all -> log",
    "a child that was stopped before is passed over": (
        "add all a b | start all | stop a -> log init_a init_b start_a start_b stop_a | stop all -> log stop_b"
    ),
    "a child that is started already is refused by init": (
        "make a | start a | add all a | init all -> raised a:_cannot_go_from_STARTED_to_INITED ; state_a STOPPED"
    ),
    "a child may stop the composite while it starts": (
        "make a start=stop:all | add all a b | init all -> log init_a init_b"
        " | start all -> log start_a stop_a ; state_all STOPPED"
    ),
    "a child added while the others start is stopped with them, but not started": (
        "make late | start late | make a start=add:all:late | add all a | start all | stop all"
        " -> log init_late start_late init_a start_a stop_late stop_a"
    ),
    "composites nest": (
        "add inner b c | add all a inner d | start all | stop all"
        " -> log init_a init_b init_c init_d start_a start_b start_c start_d stop_d stop_c stop_b stop_a"
    ),
    "a service that is stopped by itself ends alone": (
        "add both a b | init both | stop a -> ending_a True ; ending_b False ; ending_both False"
    ),
    "a service belongs to one composite that has not stopped": (
        "add one a | add one a | add two a"
        " -> raised one:_a_was_added_already two:_a_belongs_to_one_already ; parts_one a ; parts_two"
        " | stop one | add two a -> parts_one a ; parts_two a ; parent_a two"
    ),
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_scenario(script: str) -> None:
    play(Composites(), script)


def test_each_error_of_a_stop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    composite = composite_of(Child("a", [], stop=fail), Child("b", [], stop=fail))
    composite.start()

    with pytest.raises(LookupError):
        composite.stop()

    assert "composite: stopping a failed" in caplog.text
    assert "composite: stopping b failed" in caplog.text
    assert composite.wait_for_service_to_stop(0)


def test_while_a_composite_stops_all_its_services_are_ending() -> None:
    seen: list[Any] = []
    first = Child("first", [])
    last = Child("last", [], stop=lambda: seen.append((first.is_ending(), last.is_ending(), first.state)))
    outer = composite_of(composite_of(first), last)
    outer.start()

    outer.stop()

    assert seen == [(True, True, ServiceState.STARTED)]


def composite_of(*children: Service) -> CompositeService:
    composite = CompositeService("composite")
    for child in children:
        composite.add_service(child)
    return composite


def test_children_get_the_config() -> None:
    child = Child("a", [])

    composite_of(child).init({"key": 1})

    assert child.config == {"key": 1}


def test_a_dispatcher_that_was_never_started_ends_with_its_composite() -> None:
    """It holds what was posted to it, and its journal."""
    central = AsyncDispatcher(name="central")
    composite = composite_of(composite_of(Child("a", [], start=fail), central))
    composite.init()
    answer = central.ask(Event(Work.DO))

    with pytest.raises(LookupError):
        composite.start()

    assert central.is_stopped()
    assert central.stats().discarded == 1
    assert isinstance(answer.exception(0), EventDiscardedError)


def test_children_that_many_threads_add_are_all_kept() -> None:
    composite = CompositeService()

    def add() -> None:
        for number in range(100):
            composite.add_service(Child(str(number), []))

    in_threads(*[add] * 4)

    assert len(composite.services) == 400


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
    one, two = CompositeService("one"), CompositeService("two")

    def add(whole: CompositeService, part: Service) -> None:
        with suppress(ValueError):
            whole.add_service(part)

    in_threads(lambda: add(one, two), lambda: add(two, one))

    assert sorted([one.services, two.services], key=len) in ([(), (two,)], [(), (one,)])


def test_only_a_service_can_be_added() -> None:
    with pytest.raises(TypeError, match="daemon: add_service takes a Service, not 'orders'"):
        CompositeService("daemon").add_service("orders")  # type: ignore[arg-type]


def test_a_composite_is_not_kept_alive_by_its_services() -> None:
    first = Child("first", [])
    CompositeService("gone").add_service(first)

    assert not first.is_ending()
