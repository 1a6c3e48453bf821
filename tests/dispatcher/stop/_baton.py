"""Walks the orders in which threads may take their steps, with real threads of which one at a time holds a baton.

A step ends where the code under test touches shared state: this module replaces its queue, flags and locks by versions
that ask the scheduler which thread continues. An order is a list of its answers. `walk` runs a scenario once for each
order with at most `preemptions` preemptions: a thread loses the baton although it could continue. As in Microsoft's
CHESS, few preemptions show nearly all races.
"""

from __future__ import annotations

import gc
import threading
import types
from collections import deque
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest

TIMEOUT_S = 60.0
PRODUCER = "producer"  # the name of all threads that are alike
MOST_STEPS = 5_000  # of one order; far more than any needs


class Stuck(AssertionError):
    """In this order some threads never end."""


class _Killed(BaseException):
    """Ends a thread of an order that is stuck."""


class _Task:
    def __init__(self, name: str) -> None:
        self.name = name
        self.baton = threading.Lock()  # held by the scheduler while the task waits
        self.baton.acquire()
        self.until: Callable[[], bool] | None = None  # what it waits for; None: nothing
        self.started = False
        self.finished = False

    def can_run(self) -> bool:
        return not self.finished and (self.until is None or self.until())


class Scheduler:
    """One order. Its fields belong to whoever holds the baton."""

    def __init__(self, choices: list[int], preemptions: int) -> None:
        self.choices = choices  # the task that goes on, for the first decisions; then: no preemption
        self.preemptions = (
            preemptions  # still allowed; without any, the thread with the baton keeps it, which is not a decision
        )
        # The threads that could continue, the one that did, and the holder of the baton (None: it could not continue).
        self.decisions: list[tuple[list[int], int, int | None]] = []
        self.tasks: list[_Task] = []
        self.over = False
        self.stuck = ""
        self.check: Callable[[], None] = lambda: None  # called at each step, when no task is on its way
        self._task_of: dict[int, _Task] = {}
        self._done = threading.Event()
        self._settling = False
        self._steps = 0

    def spawn(self, name: str, target: Callable[[], Any]) -> None:
        SteppedThread(self, name=name, target=target).start()

    def settle(self) -> None:
        """Run the tasks there are until all wait."""
        self._run(settling=True)

    def run(self) -> None:
        """Run all tasks to their ends.

        Raises:
            Stuck: some threads wait for what no thread will do.
        """
        try:
            self._run(settling=False)
        finally:
            self.over = True
        if self.stuck:
            raise Stuck(self.stuck)

    def _run(self, settling: bool) -> None:
        global _scheduler
        _scheduler = self
        self._settling = settling
        self._done.clear()
        try:
            self._switch(None, spinning=False)
            if not self._done.wait(TIMEOUT_S):
                raise AssertionError("a task does not give the baton back")
        finally:
            _scheduler = None

    def step(self, until: Callable[[], bool] | None = None, spinning: bool = False) -> None:
        """The caller is about to touch something shared, or to wait for a condition, or waits without one."""
        task = self._task_of.get(threading.get_ident())
        if task is None:
            return
        if self.over:
            if until is not None or spinning:
                raise _Killed
            return
        self._steps += 1
        self._run_check()
        if not self.preemptions and self._steps <= MOST_STEPS and not spinning and (until is None or until()):
            return
        task.until = until
        if self._steps > MOST_STEPS:
            self._end("there is no end")
        else:
            self._switch(task, spinning)
        if self.over and (until is not None or spinning):
            raise _Killed
        task.until = None

    def _run_check(self) -> None:
        if len(self.decisions) < len(self.choices):
            return  # `walk` has seen all up to here in the order that this one branches off from
        global _scheduler
        _scheduler = None  # reads by the check are not steps
        try:
            self.check()
        finally:
            _scheduler = self

    def _switch(self, current: _Task | None, spinning: bool) -> None:
        tasks = self.tasks
        able = self._able()
        could = current is not None and not spinning and current.can_run()
        if spinning and current is not None:  # others first; MOST_STEPS ends one that spins for ever
            able = [index for index in able if tasks[index] is not current] or able
        if not able and self._settling and current is not None:
            self._done.set()
            current.baton.acquire()
            return
        if not able:
            self._end("" if all(task.finished for task in tasks) else self._waiting_tasks())
            return
        if len(able) == 1:
            chosen = able[0]
        else:
            position = len(self.decisions)
            if position < len(self.choices):
                chosen = self.choices[position]
                if chosen not in able:
                    self._end(f"decision {position} is another one than before: has a foreign thread taken part?")
                    return
            else:
                chosen = next(index for index in able if not could or tasks[index] is current)
            self.decisions.append((able, chosen, tasks.index(current) if could and current is not None else None))
            if could and tasks[chosen] is not current:
                self.preemptions -= 1
        if tasks[chosen] is not current:
            tasks[chosen].started = True
            tasks[chosen].baton.release()
            if current is not None and not current.finished:
                current.baton.acquire()

    def _able(self) -> list[int]:
        """The threads that can continue; of equal threads that have not started, only the first."""
        able: list[int] = []
        waiting_twin = False
        for index, task in enumerate(self.tasks):
            if task.can_run():
                if task.name == PRODUCER and not task.started:
                    if waiting_twin:
                        continue
                    waiting_twin = True
                able.append(index)
        return able

    def _waiting_tasks(self) -> str:
        return "never end: " + ", ".join(task.name for task in self.tasks if not task.finished)

    def _end(self, stuck: str) -> None:
        self.over, self.stuck = True, stuck
        self._done.set()
        for task in self.tasks:
            if not task.finished:
                task.baton.release()

    def run_task(self, task: _Task, target: Callable[[], Any]) -> None:
        self._task_of[threading.get_ident()] = task
        task.baton.acquire()
        try:
            if not self.over:
                target()
        except _Killed:
            pass
        finally:
            task.finished = True
            if not self.over:
                self._switch(task, spinning=False)


_scheduler: Scheduler | None = None


def _step(until: Callable[[], bool] | None = None, spinning: bool = False) -> None:
    if _scheduler is not None:
        _scheduler.step(until, spinning)


def walk(scenario: Callable[[Scheduler], None], preemptions: int) -> int:
    """Run `scenario` in each order of at most that many preemptions; returns the number of orders.

    What the scenario raises gets the order as its note. Garbage, of earlier tests or of the last order, is collected
    between two orders alone: an object that ends in the middle of a step, and touches what is shared, would take a step
    within it.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        return _walk(scenario, preemptions)
    finally:
        gc.enable()


def _walk(scenario: Callable[[Scheduler], None], preemptions: int) -> int:
    left: list[list[int]] = [[]]
    orders = 0
    while left:
        given = left.pop()
        scheduler = Scheduler(given, preemptions)
        orders += 1
        gc.collect()
        try:
            scenario(scheduler)
        except BaseException as error:
            names = [scheduler.tasks[chosen].name for _, chosen, _ in scheduler.decisions]
            error.add_note(
                f"in order {orders}: {' '.join(f'{len(list(turn))}x{name}' for name, turn in groupby(names))}"
            )
            raise
        taken = [chosen for _, chosen, _ in scheduler.decisions]
        spent = 0
        for position, (able, chosen, current) in enumerate(scheduler.decisions):
            # What was not given was by default, which preempts nobody; any other answer does, if that one can go on.
            if position >= len(given) and (current is None or spent < preemptions):
                left.extend([*taken[:position], other] for other in able if other != chosen)
            spent += current is not None and chosen != current
    return orders


class SteppedThread(threading.Thread):
    """A thread that runs when it has the baton. As handler thread it belongs to the scheduler of the moment."""

    def __init__(self, scheduler: Scheduler | None = None, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "daemon": True})
        scheduler = scheduler or _preparing
        assert scheduler is not None
        self._scheduler = scheduler
        self._task = _Task(self.name)

    def start(self) -> None:
        self._scheduler.tasks.append(self._task)
        super().start()

    def run(self) -> None:
        self._scheduler.run_task(self._task, super().run)


class SteppedLock:
    """Both kinds of lock: whoever wants it waits without the baton."""

    def __init__(self) -> None:
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock. Whoever holds it may be preempted, whoever wants it then waits, whatever the timeout."""
        me = threading.get_ident()
        if self._owner == me and self._reentrant:
            self._depth += 1
            return True
        if not blocking:
            return self._owner is None and self.acquire()
        _step(lambda: self._owner is None)
        self._owner = me
        self._depth = 1
        return True

    _reentrant = False

    def release(self) -> None:
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._depth -= 1
        if not self._depth:
            self._owner = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._owner == threading.get_ident()


class SteppedGate:
    """Where the handler thread waits: as a PlainLock."""

    def __init__(self) -> None:
        self._released = 0

    def acquire(self) -> None:
        _step(lambda: self._released > 0)
        self._released -= 1

    def acquire_within(self, seconds: float) -> bool:
        self.acquire()
        return True

    def release(self) -> None:
        _step()
        self._released += 1

    def knock(self, signal: bytes) -> None:
        self.release()


class SteppedRLock(SteppedLock):
    _reentrant = True


class SteppedEvent:
    """An event. A wait of less than a second, of which there are few, is over at once."""

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        _step()
        self._set = True

    def wait(self, timeout: float | None = None) -> bool:
        _step(None if timeout is not None and timeout < 1 else self.is_set)
        return self._set


class _SteppedEnds:
    """What a deque and a list have in common."""

    def append(self, entry: Any) -> None:
        _step()
        super().append(entry)  # type: ignore[misc]

    def pop(self, *index: int) -> Any:
        _step()
        return super().pop(*index)  # type: ignore[misc]

    def __len__(self) -> int:
        _step()
        return super().__len__()  # type: ignore[misc]


class SteppedDeque(_SteppedEnds, deque[Any]):
    def popleft(self) -> Any:
        _step()
        return super().popleft()

    def extend(self, entries: Any) -> None:
        _step()
        super().extend(entries)

    def remove(self, entry: Any) -> None:
        _step()
        super().remove(entry)


class SteppedList(_SteppedEnds, list[Any]): ...


class _SteppedField:
    """Stands for a field of a class: each read and write of it is a step; lists become stepped ones."""

    def __init__(self, owner: type, name: str) -> None:
        self._name = name
        self._slot: Any = vars(owner).get(name)  # None: kept in the object's __dict__

    def __get__(self, target: Any, _: type) -> Any:
        if target is None:
            return self
        _step()
        return target.__dict__[self._name] if self._slot is None else self._slot.__get__(target)

    def __set__(self, target: Any, value: Any) -> None:
        _step()
        if type(value) is list:
            value = SteppedList(value)
        if self._slot is None:
            target.__dict__[self._name] = value
        else:
            self._slot.__set__(target, value)


_preparing: Scheduler | None = None


def prepare(scheduler: Scheduler) -> None:
    """Threads made from now on without a scheduler of their own are this one's."""
    global _preparing
    _preparing = scheduler


def replace_what_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dispatchers made from now on take their steps as the scheduler says. No other thread of the process sees them."""
    from dispatcher import async_dispatcher, view
    from dispatcher.dispatching import stopping, times
    from dispatcher.mailbox import parking, task_mailbox
    from dispatcher.queue import flags, inbox
    from dispatcher.queue import room as queue_room

    locks = {"Lock": SteppedLock, "RLock": SteppedRLock}
    threads = {"Thread": SteppedThread, "Event": SteppedEvent}
    for module, replaced in (
        (inbox, locks),
        (queue_room, locks),
        (task_mailbox, locks),
        (async_dispatcher, threads),
        (stopping, {"Event": SteppedEvent}),
    ):
        monkeypatch.setattr(module, "threading", types.SimpleNamespace(**{**vars(threading), **replaced}))
    # Earlier tests may have left a sampler, which reads all dispatchers each second and would take their locks.
    monkeypatch.setattr(view._views, "add", lambda _: None)
    monkeypatch.setattr(inbox, "deque", SteppedDeque)
    monkeypatch.setattr(queue_room, "deque", SteppedDeque)
    monkeypatch.setattr(parking, "PlainLock", SteppedGate)
    monkeypatch.setattr(parking.Parking, "wake_sooner", lambda _: None)
    monkeypatch.setattr(queue_room, "sleep", lambda _: _step(spinning=True))
    for owner, names in (
        (flags.PostFlags, ("gate", "alert", "phase")),
        (queue_room.QueueRoom, ("is_crowded",)),
        (parking.Parking, ("duties",)),
        (times.BatchProgress, ("entry",)),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, _SteppedField(owner, name), raising=False)
