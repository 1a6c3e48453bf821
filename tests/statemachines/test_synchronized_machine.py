"""Machines that receive events from several threads, and that a hook re-enters."""

from __future__ import annotations

import copy
import itertools
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from statemachines import InvalidStateTransitionError, MultiStateTransitionListener, StateMachine, StateMachineFactory

from ..kit import TIMEOUT_S
from ..kit import Gate as KitGate
from .lights import Diary, E, Factory, Light, S

THREADS, EVENTS_EACH = 8, 250


@pytest.fixture
def factory() -> Factory:
    return StateMachineFactory(S.RED, "Light")


class Gate(KitGate):
    """A hook that signals when it is entered, and waits until it is released."""

    def hook(self, operand: Any, event: Any) -> None:
        self.handle(event)


class Knock:
    """A listener that signals when another thread's event has reached the machine's lock, or would have passed it."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.arrived = threading.Event()
        self.lock = machine._lock
        machine._lock = self

    def __enter__(self) -> None:
        self.arrived.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def second_event(
    machine: StateMachine[Light, Any], gate: Gate, pool: ThreadPoolExecutor, event_type: E
) -> tuple[Future[Light], Future[Light]]:
    """The first thread is in the hook of GO when the second thread's event reaches the lock; then the hook ends."""
    first = pool.submit(machine.do_transition, E.GO, "first")
    assert gate.entered.wait(TIMEOUT_S)
    knock = Knock(machine)
    second = pool.submit(machine.do_transition, event_type, "second")
    assert knock.arrived.wait(TIMEOUT_S)
    assert not second.done()
    gate.opened.set()
    return first, second


def test_second_threads_event_waits_and_meets_the_state_that_the_transition_leaves(factory: Factory) -> None:
    gate, diary = Gate(), Diary()
    built = factory.add_transition(S.RED, S.GREEN, E.GO, gate.hook).add_transition(
        S.GREEN, S.YELLOW, E.STOP, diary.hook
    )
    machine = built.make("lamp", listener=diary, synchronized=True)

    with ThreadPoolExecutor(2) as pool:
        first, second = second_event(machine, gate, pool, E.STOP)

        assert first.result(TIMEOUT_S) is S.GREEN
        assert second.result(TIMEOUT_S) is S.YELLOW
    assert (machine.previous_state, machine.current_state) == (S.GREEN, S.YELLOW)
    assert diary.notes == [
        ("pre", "lamp", S.RED, "first"),
        ("post", "lamp", S.RED, S.GREEN, "first"),
        ("pre", "lamp", S.GREEN, "second"),
        ("hook", "lamp", "second"),
        ("post", "lamp", S.GREEN, S.YELLOW, "second"),
    ]


@pytest.mark.parametrize("first_fails", [False, True])
def test_second_threads_event_meets_the_state_that_the_transition_or_its_failure_leaves(
    factory: Factory, first_fails: bool
) -> None:
    gate = Gate()

    def hook(operand: Any, event: Any) -> None:
        gate.hook(operand, event)
        if first_fails:
            raise KeyError("boom")

    built = factory.add_transition(S.RED, S.GREEN, E.GO, hook).add_transition(S.RED, S.YELLOW, E.STOP)
    machine = built.make("lamp", synchronized=True)

    with ThreadPoolExecutor(2) as pool:
        first, second = second_event(machine, gate, pool, E.STOP)

        refused, told = (first, KeyError) if first_fails else (second, InvalidStateTransitionError)
        with pytest.raises(told, match="boom" if first_fails else "no transition from GREEN on STOP"):
            refused.result(TIMEOUT_S)
    assert machine.current_state is (S.YELLOW if first_fails else S.GREEN)


def test_release_waits_for_the_transition_in_progress(factory: Factory) -> None:
    gate, diary = Gate(), Diary()
    machine = factory.add_transition(S.RED, S.GREEN, E.GO, gate.hook).make("lamp", listener=diary, synchronized=True)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(machine.do_transition, E.GO, "event")
        assert gate.entered.wait(TIMEOUT_S)
        knock = Knock(machine)
        released = pool.submit(machine.release)
        assert knock.arrived.wait(TIMEOUT_S)
        assert not released.done()
        gate.opened.set()
        released.result(TIMEOUT_S)
        first.result(TIMEOUT_S)

    assert diary.notes == [("pre", "lamp", S.RED, "event"), ("post", "lamp", S.RED, S.GREEN, "event")]


def test_no_event_of_many_threads_is_lost(factory: Factory) -> None:
    """Unsynchronized, two threads made a transition from the same state and one of them was lost."""
    made: list[tuple[Light, Light]] = []
    hooks_running = 0

    class Counting:
        def pre_transition(self, operand: Any, before: Any, event: Any) -> None: ...

        def post_transition(self, operand: Any, before: Any, after: Any, event: Any) -> None:
            made.append((before, after))

    def hook(operand: Any, event: Any) -> None:
        nonlocal hooks_running
        hooks_running += 1
        assert hooks_running == 1
        hooks_running -= 1

    order = [S.RED, S.GREEN, S.YELLOW]
    built = factory
    for before, after in zip(order, [*order[1:], S.RED], strict=True):
        built = built.add_transition(before, after, E.GO, hook)
    machine = built.make("lamp", listener=Counting(), synchronized=True)
    together = threading.Barrier(THREADS)

    def send() -> None:
        together.wait(TIMEOUT_S)
        for _ in range(EVENTS_EACH):
            machine.do_transition(E.GO, None)

    with ThreadPoolExecutor(THREADS) as pool:
        for sent in [pool.submit(send) for _ in range(THREADS)]:
            sent.result(TIMEOUT_S)

    assert len(made) == THREADS * EVENTS_EACH
    assert [before for before, _ in made] == [order[number % 3] for number in range(len(made))]
    assert all(after is before for (_, after), (before, _) in itertools.pairwise(made))
    assert machine.current_state is order[len(made) % 3]


# -- a machine's own hooks and listeners: the same with and without the lock -------------------------------------------


@pytest.mark.parametrize("synchronized", [False, True])
def test_hooks_event_to_its_own_machine_starts_from_the_old_state_and_is_overwritten(
    factory: Factory, synchronized: bool
) -> None:
    diary = Diary()
    machine: StateMachine[Light, Any]

    def reenter(operand: Any, event: Any) -> None:
        diary.notes.append(("inner", machine.do_transition(E.STOP, "inner"), machine.current_state))

    built = factory.add_transition(S.RED, S.GREEN, E.GO, reenter).add_transition(S.RED, S.YELLOW, E.STOP)
    machine = built.make("lamp", listener=diary, synchronized=synchronized)

    assert machine.do_transition(E.GO, "outer") is S.GREEN

    assert (machine.previous_state, machine.current_state) == (S.RED, S.GREEN)
    assert diary.notes == [
        ("pre", "lamp", S.RED, "outer"),
        ("pre", "lamp", S.RED, "inner"),
        ("post", "lamp", S.RED, S.YELLOW, "inner"),
        ("inner", S.YELLOW, S.YELLOW),
        ("post", "lamp", S.RED, S.GREEN, "outer"),
    ]


class Sending:
    """A listener that sends its machine an event, once, before or after a transition."""

    def __init__(self, send: Callable[[], object], *, before: bool) -> None:
        self._send: Callable[[], object] | None = send
        self._is_before = before

    def pre_transition(self, operand: Any, before: Any, event: Any) -> None:
        self._once(self._is_before)

    def post_transition(self, operand: Any, before: Any, after: Any, event: Any) -> None:
        self._once(not self._is_before)

    def _once(self, now: bool) -> None:
        send = self._send
        if now and send is not None:
            self._send = None
            send()


@pytest.mark.parametrize("synchronized", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_listeners_event_to_its_own_machine_is_not_lost(factory: Factory, synchronized: bool, before: bool) -> None:
    """A transition made by a listener before this one was overwritten; Hadoop makes both."""
    machine: StateMachine[Light, Any]
    sending = Sending(lambda: machine.do_transition(E.STOP if before else E.WAIT, "inner"), before=before)
    built = (
        factory.add_transition(S.RED, S.YELLOW, E.STOP)
        .add_transition([S.RED, S.YELLOW][before], S.GREEN, E.GO)
        .add_transition(S.GREEN, S.YELLOW, E.WAIT)
    )
    machine = built.make("lamp", listener=MultiStateTransitionListener(sending), synchronized=synchronized)

    machine.do_transition(E.GO, "outer")

    expected = (S.YELLOW, S.GREEN) if before else (S.GREEN, S.YELLOW)
    assert (machine.previous_state, machine.current_state) == expected


# -- what both kinds of machine have in common -------------------------------------------------------------------------


@pytest.mark.parametrize("synchronized", [False, True])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda machine: pickle.loads(pickle.dumps(machine))])
def test_copies_go_their_own_way(
    factory: Factory, synchronized: bool, duplicate: Callable[[StateMachine[Light, Any]], StateMachine[Light, Any]]
) -> None:
    built = factory.add_transition(S.RED, S.GREEN, E.GO).add_transition(S.GREEN, S.YELLOW, E.GO)
    machine = built.make("lamp", synchronized=synchronized)
    machine.do_transition(E.GO, None)

    other = duplicate(machine)
    other.do_transition(E.GO, None)

    assert type(other) is type(machine)
    assert (other.previous_state, other.current_state) == (S.GREEN, S.YELLOW)
    assert (machine.previous_state, machine.current_state) == (S.RED, S.GREEN)


def test_neither_a_copy_nor_a_reader_of_states_waits_for_the_transition(factory: Factory) -> None:
    gate = Gate()
    built = factory.add_transition(S.RED, S.GREEN, E.GO, gate.hook).add_transition(S.RED, S.YELLOW, E.STOP)
    machine = built.make("lamp", synchronized=True)
    other = copy.copy(machine)

    with ThreadPoolExecutor(1) as pool:
        transition = pool.submit(machine.do_transition, E.GO, None)
        assert gate.entered.wait(TIMEOUT_S)

        assert other.do_transition(E.STOP, None) is S.YELLOW
        assert (machine.previous_state, machine.current_state) == (None, S.RED), "states can be read meanwhile"

        gate.opened.set()
        assert transition.result(TIMEOUT_S) is S.GREEN
