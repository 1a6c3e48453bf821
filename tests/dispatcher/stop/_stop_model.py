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
    """All that the threads share, and the next step of each: for a waiting thread, the one that takes the lock."""

    producers: tuple[str, ...]  # the next step of each
    answers: tuple[bool | None, ...]  # of the posts
    handler: str = "look at the queue"
    stopper: str = "set phase"
    phase: Phase = Phase.RUNNING
    gate: bool = False  # take the slow path before the append
    alert: bool = False  # take the slow path after it
    parked: int = 0  # 1: the duty to wake the handler thread is there to be taken
    released: int = 0  # 1: the handler thread was woken
    lock: str = ""  # the holder of the queue's lock
    queue: tuple[int, ...] = ()
    hand: int | None = None  # taken, not handled yet
    handled: tuple[int, ...] = ()
    discarded: tuple[int, ...] = ()
    permits: int | None = None  # None: the queue is not bounded
    closer: bool = False  # a thread that returns a permit takes the slow path
    waiting: tuple[int, ...] = ()  # producers that wait for a permit and were not notified


class Rules(NamedTuple):
    """The kind of stop, and the precaution that is left out, to show that it is needed."""

    drain: bool | None = True  # None: no stop
    impatient: bool = False  # the stop gives up the drain at some moment
    full: str = "reject"  # what a post to a full queue does, or "block"
    left_out: str = ""


def _producer(state: State, me: int, rules: Rules) -> State | None:
    """The producer's next step; None: it waits."""
    name = f"producer {me}"

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
            return answer(False) if rules.full == "reject" else go("lock room")
        case "lock room":
            if state.lock or me in state.waiting:
                return None
            if state.phase is not Phase.RUNNING:
                return answer(False)
            return go("look for room", lock=name, closer=True)
        case "look for room":
            if state.permits:
                return go("append", lock="", permits=state.permits - 1)
            return go("lock room", lock="", waiting=(*state.waiting, me))
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
            if not state.lock:
                # Not if it is the handler thread that has set STOPPED, which takes what has come in last.
                discards = abort or not rules.drain
                if rules.left_out == "discard only after a stop of its own":
                    discards = state.phase is Phase.STOPPED
                yield go(abort + ("discard" if discards else "take duty"), waiting=())
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
            return go("handle" if state.permits is None else "look closer", hand=state.queue[0], queue=state.queue[1:])
        case "look closer":
            return go("lock room" if state.closer else "give permit")
        case "lock room":
            if state.lock:
                return None
            return go("handle", permits=(state.permits or 0) + 1, closer=False, waiting=())
        case "give permit":
            then = "handle" if rules.left_out == "look after a permit was given" else "look closer again"
            return go(then, permits=(state.permits or 0) + 1)
        case "look closer again":
            return go("tell" if state.closer else "handle")
        case "tell":
            return None if state.lock else go("handle", closer=False, waiting=())
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
            return None if state.lock else go("take last", waiting=())
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
        return producers[me], -1 if (answer := answers[me]) is None else answer, in_queue, fate, me in state.waiting

    order = sorted(range(len(producers)), key=place)
    if order == sorted(order):
        if len(handled) < 2 and len(discarded) < 2 and len(state.waiting) < 2:
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
        waiting=tuple(sorted(new[me] for me in state.waiting)),
    )


def explore(producers: int, capacity: int | None, rules: Rules, check: Callable[[State], None]) -> int:
    """Check each state in which no thread can continue; returns the number of states."""
    start = State(("look at gate",) * producers, (None,) * producers, permits=capacity)
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
