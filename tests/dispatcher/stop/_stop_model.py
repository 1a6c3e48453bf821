"""A model of how posts, a stop and the handler thread meet: each atomic step a function, and all orders explored.

It follows the code step by step, so a step that the code expects at any time comes at any time here. The handler
thread runs one event in each batch; an event is the number of its producer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple


class Phase(IntEnum):
    RUNNING = 0
    DRAINING = 1
    STOPPED = 2


DONE = "done"


class State(NamedTuple):
    """All that the threads share, and the next step of each: for a waiting thread, the one that ends its wait."""

    producers: tuple[str, ...]  # the next step of each
    answers: tuple[bool | None, ...]  # of the posts
    handler: str = "look at the queue"
    stopper: str = "set phase"
    phase: Phase = Phase.RUNNING
    gate: bool = False  # take the slow path before the append
    alert: bool = False  # take the slow path after it
    parked: int = 0  # 1: the duty to wake the handler thread is there to be taken
    released: int = 0  # 1: the handler thread was woken
    lock: str = ""  # the holder of the queue's `end_lock`
    queue: tuple[int, ...] = ()
    hand: int | None = None  # taken, not handled yet
    handled: tuple[int, ...] = ()
    discarded: tuple[int, ...] = ()
    permits: int | None = None  # None: the queue is not bounded
    timeouts: int = 0  # producers that may still give up their wait for a permit
    waiters: tuple[int, ...] = ()  # producers whose locks are queued
    crowded: bool = False  # the handler thread looks for a waiter
    woken: tuple[int, ...] = ()  # producers whose locks were taken from the queue and released


class Rules(NamedTuple):
    """The kind of stop, and the precaution that is left out, to show that it is needed."""

    drain: bool | None = True  # None: no stop
    impatient: bool = False  # the stop gives up the drain at some moment
    full: str = (
        "reject"  # what a post to a full queue does: "reject", "block", or "timeout": one gives up at some moment
    )
    left_out: str = ""


def _producer(state: State, me: int, rules: Rules) -> State | None:
    """The producer's next step; None: it waits."""

    def go(to: str, **changes: object) -> State:
        return state._replace(producers=(*state.producers[:me], to, *state.producers[me + 1 :]), **changes)  # type: ignore[arg-type]

    def answer(accepted: bool, **changes: object) -> State:
        return go(DONE, answers=(*state.answers[:me], accepted, *state.answers[me + 1 :]), **changes)

    into_queue = "append" if state.permits is None else "take permit"
    match state.producers[me]:
        case "look at gate":
            return go("look at phase" if state.gate else into_queue)
        case "look at phase":
            return go(into_queue) if state.phase is Phase.RUNNING else answer(False)
        case "take permit":
            if state.permits:
                return go("append", permits=state.permits - 1)
            return answer(False) if rules.full == "reject" else go("queue the lock")
        case "queue the lock":
            woken = tuple(other for other in state.woken if other != me)  # it is a new lock
            to = "wait" if rules.left_out == "look again after the lock was queued" else "look whether shut meanwhile"
            return go(f"crowd, then {to}", waiters=(*state.waiters, me), woken=woken)
        case "crowd, then wait" | "crowd, then look whether shut meanwhile":
            return go(state.producers[me].removeprefix("crowd, then "), crowded=True)
        case "look whether shut meanwhile":
            return go("look for room" if state.phase is Phase.RUNNING else "leave, then refuse")
        case "look for room":
            if state.permits:
                return go("leave, then append", permits=state.permits - 1)
            return go("wait")
        case "wait":
            if me in state.woken:
                return go("look at phase once woken")
            return go("look for room at the end", timeouts=state.timeouts - 1) if state.timeouts else None
        case "look for room at the end":
            if state.permits:
                return go("leave, then append", permits=state.permits - 1)
            return go("leave, then refuse")
        case "look at phase once woken":
            running = state.phase is Phase.RUNNING
            return go("look for room once woken" if running else "leave, then queue the lock")
        case "look for room once woken":
            if state.permits:
                return go("leave, then append", permits=state.permits - 1)
            return go("leave, then queue the lock")
        case "leave, then append" | "leave, then refuse" | "leave, then queue the lock":
            then = state.producers[me].removeprefix("leave, then ")
            if me in state.waiters:
                return go(then, waiters=tuple(other for other in state.waiters if other != me))
            return go(then if rules.left_out == "pass the turn on" else f"pass on, then {then}")
        case "pass on, then append" | "pass on, then refuse" | "pass on, then queue the lock":
            then = state.producers[me].removeprefix("pass on, then ")
            return go(f"wake, then {then}" if state.permits else then)
        case "wake, then append" | "wake, then refuse" | "wake, then queue the lock":
            return go(state.producers[me].removeprefix("wake, then "), **_wake_one(state))
        case "refuse":
            return answer(False)
        case "append":
            if rules.left_out == "look after the append":
                return go("wake only", queue=(*state.queue, me))
            return go("look at alert", queue=(*state.queue, me))
        case "wake only":
            return answer(True, parked=0, released=state.released + state.parked)
        case "look at alert":
            return go("take duty") if state.alert else answer(True)
        case "take duty":
            if not state.parked:
                return go("look whether shut")
            return go("release first" if rules.left_out == "reset before the release" else "reset alert", parked=0)
        case "release first":
            return go("reset late", released=1)
        case "reset late":
            return go("look whether shut", alert=False)
        case "reset alert":
            return go("look whether still running", alert=False)
        case "look whether still running":
            if state.phase is Phase.RUNNING:
                return go("release")
            return go("set alert again")
        case "set alert again":
            return go("release, then look whether stopped", alert=True)
        case "release":
            return answer(True, released=1)
        case "release, then look whether stopped":
            return go("look whether stopped", released=1)
        case "look whether shut":
            return answer(True) if state.phase is Phase.RUNNING else go("look whether stopped")
        case "look whether stopped":
            return go("take back") if state.phase is Phase.STOPPED else answer(True)
        case "take back":
            if state.lock:
                return None
            if me not in state.queue:
                return answer(True)
            return answer(False, queue=tuple(event for event in state.queue if event != me))
    raise AssertionError(state.producers[me])


def _wake_one(state: State) -> dict[str, object]:
    """Take the first lock from the queue, and release it: two steps, but nobody can tell them apart."""
    return {"waiters": state.waiters[1:], "woken": (*state.woken, *state.waiters[:1])}


def _stopper(state: State, rules: Rules) -> Iterator[State]:
    """The stopper's next step, if it has one."""

    def go(to: str, **changes: object) -> State:
        return state._replace(stopper=to, **changes)  # type: ignore[arg-type]

    at = state.stopper.removeprefix("abort: ")
    abort = "abort: " if at != state.stopper else ""
    match at:
        case "set phase":
            if not state.lock:
                phase = Phase.DRAINING if rules.drain and not abort else Phase.STOPPED
                yield go(abort + "set gate", lock="stopper", phase=max(state.phase, phase))
        case "set gate":
            yield go(abort + "set alert", gate=True)
        case "set alert":
            yield go(abort + "notify", alert=True, lock="")
        case "notify":
            # Not if it is the handler thread that has set STOPPED, which takes what has come in last.
            discards = abort or not rules.drain
            if rules.left_out == "discard only after a stop of its own":
                discards = state.phase is Phase.STOPPED
            if state.waiters and rules.left_out != "wake all once shut":
                yield go(state.stopper, **_wake_one(state))
            else:
                yield go(abort + ("discard" if discards else "take duty"))
        case "discard":
            if not state.lock:
                yield go(abort + "discard all", lock="stopper")
        case "discard all":
            if state.queue:
                yield go(state.stopper, queue=state.queue[1:], discarded=(*state.discarded, state.queue[0]))
            else:
                yield go(abort + "take duty", lock="")
        case "take duty":
            yield go(abort + ("release" if state.parked else "wait"), parked=0)
        case "release":
            yield go(abort + "wait", released=1)
        case "wait":
            if state.handler == DONE:
                yield go(DONE)
            elif rules.impatient and not abort:
                yield go("abort: set phase")


def _handler(state: State, rules: Rules) -> State | None:
    """The handler thread's next step; None: it waits."""

    def go(to: str, **changes: object) -> State:
        return state._replace(handler=to, **changes)  # type: ignore[arg-type]

    match state.handler:
        case "look at the queue":
            return go("take" if state.queue else "look whether to end")
        case "take":
            if not state.queue:
                return go("look at the queue")
            room = "handle" if state.permits is None else "look whether crowded"
            return go(room, hand=state.queue[0], queue=state.queue[1:])
        case "look whether crowded":
            return go("give permit and serve" if state.crowded else "give permit")
        case "give permit":
            then = "handle" if rules.left_out == "look after a permit was given" else "look whether crowded meanwhile"
            return go(then, permits=(state.permits or 0) + 1)
        case "look whether crowded meanwhile":
            return go("wake" if state.crowded else "handle")
        case "wake":
            return go("handle", **_wake_one(state))
        case "give permit and serve":
            return go("serve", permits=(state.permits or 0) + 1)
        case "serve":
            return go("reset crowded", **_wake_one(state))
        case "reset crowded":
            to = "handle" if rules.left_out == "look again after the reset" else "look for waiters"
            return go(to, crowded=False)
        case "look for waiters":
            return go("set crowded" if state.waiters else "handle")
        case "set crowded":
            return go("handle", crowded=True)
        case "handle":
            return go("look at the queue", hand=None, handled=(*state.handled, state.hand))
        case "look whether to end":
            return go("put duty" if state.phase is Phase.RUNNING else "set phase")
        case "put duty":
            return go("set alert", parked=1)
        case "set alert":
            return go("wait" if rules.left_out == "look again before the wait" else "look again", alert=True)
        case "look again":
            return go("take duty" if state.queue or state.phase is not Phase.RUNNING else "wait")
        case "take duty":
            return go("wait", released=state.released + state.parked, parked=0)
        case "wait":
            return go("look at alert", released=0) if state.released else None
        case "look at alert":
            return go("calm" if state.alert else "look at the queue")
        case "calm":
            return go("look whether calm", alert=False)
        case "look whether calm":
            return go("look at the queue", alert=state.alert or state.phase is not Phase.RUNNING)
        case "set phase":
            return None if state.lock else go("set gate", lock="handler", phase=Phase.STOPPED)
        case "set gate":
            return go("set last alert", gate=True)
        case "set last alert":
            return go("notify", alert=True, lock="")
        case "notify":
            wakes = state.waiters and rules.left_out != "wake all once shut"
            return go("notify", **_wake_one(state)) if wakes else go("take last")
        case "take last":
            if state.lock:
                return None
            if state.queue and rules.left_out != "take what came in last":
                return go("take last", queue=state.queue[1:], handled=(*state.handled, state.queue[0]))
            # What comes from here on is taken back by its producer: it sees STOPPED.
            return go("discard" if rules.left_out == "leave what is late to its producer" else DONE)
        case "discard":
            if state.lock:
                return None
            return go(DONE, queue=(), discarded=(*state.discarded, *state.queue))
    return None


def _next(state: State, rules: Rules) -> Iterator[State]:
    for me, at in enumerate(state.producers):
        if at != DONE and (after := _producer(state, me, rules)) is not None:
            yield after
    yield from _stopper(state, rules)
    if (after := _handler(state, rules)) is not None:
        yield after


def _renamed(state: State) -> State:
    """One state for all that differ only in which producer is which, or in the order of what is done."""
    producers, answers, queue, handled, discarded = (
        state.producers,
        state.answers,
        state.queue,
        state.handled,
        state.discarded,
    )

    def place(me: int) -> tuple[object, ...]:
        in_queue = queue.index(me) if me in queue else -1
        fate = handled.count(me) + 8 * discarded.count(me)
        turn = state.waiters.index(me) if me in state.waiters else -1 - (me in state.woken)
        return producers[me], -1 if (answer := answers[me]) is None else answer, in_queue, fate, turn

    order = sorted(range(len(producers)), key=place)
    if order == sorted(order):
        if len(handled) < 2 and len(discarded) < 2 and len(state.woken) < 2:
            return state
        new = order
    else:
        new = [order.index(me) for me in range(len(order))]
    return state._replace(
        producers=tuple(producers[me] for me in order),
        answers=tuple(answers[me] for me in order),
        queue=tuple(new[me] for me in queue),
        hand=None if state.hand is None else new[state.hand],
        handled=tuple(sorted(new[me] for me in handled)),
        discarded=tuple(sorted(new[me] for me in discarded)),
        waiters=tuple(new[me] for me in state.waiters),
        woken=tuple(sorted(new[me] for me in state.woken)),
    )


def explore(producers: int, capacity: int | None, rules: Rules, check: Callable[[State], None]) -> int:
    """Check each state in which no thread can continue; returns the number of states."""
    timeouts = int(rules.full == "timeout")
    start = State(("look at gate",) * producers, (None,) * producers, permits=capacity, timeouts=timeouts)
    if rules.drain is None:
        start = start._replace(stopper=DONE)
    seen, left = {start}, [start]
    while left:
        state = left.pop()
        last = True
        for after in _next(state, rules):
            last = False
            after = _renamed(after)
            if after not in seen:
                seen.add(after)
                left.append(after)
        if last:
            check(state)
    return len(seen)
