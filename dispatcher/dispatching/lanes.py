"""Lanes: the way of events to the coroutines of one `async def` handler, and back.

    handler thread --inbox--> event loop: a task for each event --ended--> handler thread

The handler thread decides what runs. An event first waits for its key, until fewer than `per_key` events of that key
have begun and not ended, and then for one of the `capacity` slots. So an event that waits for its key takes no slot
from other keys. The loop starts the coroutines that it is given and reports their ends. Each side writes its own fields
of a Call before it passes the call on.

A round trip between the threads costs as much as several events. So the loop is woken once for several events in a row,
and it reports the coroutines that did not wait in one mail. After a success, the loop itself gives the slot to the next
event of the key, the call's `successor`. After a failure the handler thread decides, because a retry may come first.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from contextvars import Context, ContextVar, copy_context
from functools import partial
from heapq import heappop, heappush
from itertools import count
from operator import attrgetter
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from dispatcher.errors import EventLoopClosedError
from dispatcher.event import AsyncioHandler
from dispatcher.queue.entry import Entry
from dispatcher.util.figures import plain_seconds
from dispatcher.util.foreign import reraise_interrupt, text_of
from dispatcher.util.frames import CAN_READ_FRAMES, stack_of

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

    from dispatcher.dispatching.eager import Ended
    from dispatcher.routes import Route
    from dispatcher.util.rate_limit import RateLimiter

_MOST_FRAMES: Final = 50
_TURN_NS: Final = 1_000_000
"""For so long a lane starts coroutines that do not wait, then others on the loop have their turn."""
T = TypeVar("T")


class EventTaken(BaseException):
    """Raised by a handler whose event stays in hand until its coroutine has ended.

    An exception, so that plain handlers, whose return is the hot path, pay nothing for it.
    """


class BeginsLater(partial[Any]):
    """A handler that claims an event itself, once that begins: its caller may withdraw it while it waits."""


class CallTransition(NamedTuple):
    """A row of the journal's transitions, without its seq."""

    machine: str
    from_state: str
    event_type: str
    to_state: str
    valid: bool
    entity: str
    at: int
    """Unix ns on the clock of the run."""
    data: str | None


class LaneOwner(Protocol):
    """The lanes of one dispatcher. Any thread."""

    def now_ns(self) -> int: ...

    def is_abandoned(self) -> bool:
        """Whether no further event begins."""

    def stamp(self, call: Call) -> None:
        """The call goes to its loop."""

    def end(self, call: Call) -> None:
        """The call has ended."""

    def report(self) -> None:
        """Have the handler thread look at the calls that have ended."""

    def record_later(self, handling: Handling) -> None:
        """Have the handler thread record the transitions of an event whose row is written."""

    def turns_taken(self) -> None:
        """Calls have had their turns. Handler thread."""


class Call:
    """One event on its way through a lane."""

    __slots__ = (
        "accepted_seq",
        "at",
        "context",
        "coroutine",
        "cost",
        "ended_ns",
        "enqueued_ns",
        "entry",
        "error",
        "event",
        "handling",
        "is_ready",
        "is_redelivered",
        "is_under_way",
        "is_withdrawn",
        "key",
        "lane",
        "line",
        "number",
        "route",
        "started_ns",
        "successor",
        "task",
        "thread_id",
        "turn_line",
        "value",
    )

    def __init__(
        self, event: Any, entry: Entry | None, enqueued_ns: int, lane: Lane, route: Route, context: Context | None
    ) -> None:
        """`context`: in which its coroutine begins; None: any. Handler thread.

        Raises:
            Exception: raised by the user's function for the key, or by the key.
        """
        self.event: Any = event  # never changes, like all fields that do not say otherwise
        self.enqueued_ns: int = enqueued_ns  # of perf_counter_ns; 0: not measured
        self.entry: Entry | None = entry  # None: it has none, or is tried again; the handler thread resets it
        self.accepted_seq: int = entry.accepted_seq if entry is not None else 0  # 0: not in the log; handler thread
        self.is_redelivered: bool = entry is not None and entry.is_redelivered
        self.lane: Lane = lane
        self.route: Route = route
        self.context: Context | None = context
        self.key: Hashable
        self.line: Line
        self.key, self.line = lane.line_of(event)
        self.number: int = next(lane.numbers)
        # Of a lane with a rate, which sets both with `put`; never change after it.
        self.turn_line: TurnLine
        self.cost: float
        self.is_ready: bool = False  # its key lets it begin; handler thread writes, any reads
        self.started_ns: int = 0  # when it was given to the loop; 0: not yet; who does so writes
        self.at: int = 0  # the same on the clock of the run, Unix ns; as `started_ns`
        self.is_under_way: bool = True  # until it has ended or is given up; both sides reset it, any thread reads
        self.is_withdrawn: bool = False  # by its caller, before its coroutine began; the loop writes
        self.handling: Handling | None = None  # once the coroutine begins; the loop writes
        # What has become of it: the loop writes, any thread reads.
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        self.task: Task[Any] | None = None
        self.thread_id: int = 0
        self.error: BaseException | None = None
        self.value: Any = None  # what it returned, if it was asked
        self.successor: Call | None = None  # the call of its key that has its slot now; written before its end is seen
        self.ended_ns: int = 0


class TurnLine:
    """The calls of a lane with a rate that wait for the turns of one limiter, in their order. Handler thread."""

    __slots__ = ("calls", "limiter", "reserved")

    def __init__(self, limiter: RateLimiter) -> None:
        self.limiter: RateLimiter = limiter  # never changes; without `per_key`, one for all dispatchers of its handler
        self.calls: deque[Call] = deque()
        self.reserved: tuple[float, float] | None = None  # for the first: the start in ms, and the cost

    def start_ms(self, cost: float, now_ms: float) -> float:
        """When the first call may begin. Its reservation is used once it has."""
        if self.reserved is None or cost > self.reserved[1]:
            self.reserved = self.limiter.reserve(now_ms, cost), cost
        return self.reserved[0]


class Handling:
    """The call, in the context of its coroutine and of the tasks and threads that this starts. These may outlive it."""

    __slots__ = ("call", "owner", "seq", "transitions")

    def __init__(self, call: Call) -> None:
        self.owner: LaneOwner = call.lane.owner  # never changes
        # What it has done to state machines, until its row has its seq; any thread appends, and then reads `seq`. The
        # handler thread sets `seq`, and then takes what is there.
        self.transitions: list[CallTransition] = []
        self.seq: int = 0  # of the event's row in the journal; 0: none yet
        # None once the call has ended: a context keeps no event, and a task, which a call refers to, leads to no cycle.
        # The loop or the handler thread resets it, any thread reads it.
        self.call: Call | None = call

    def add_transition(
        self,
        machine: str,
        entity: str,
        from_state: str,
        event_type: str,
        to_state: str,
        *,
        valid: bool,
        data: str | None = None,
    ) -> None:
        """Keep a transition for the row of the coroutine's event. Any thread that works for the coroutine."""
        at = self.owner.now_ns()
        self.transitions.append(CallTransition(machine, from_state, event_type, to_state, valid, entity, at, data))
        if self.seq:  # its coroutine has ended without waiting for this thread, and its row was written meanwhile
            self.owner.record_later(self)


_CURRENT: Final[ContextVar[Handling | None]] = ContextVar("the event whose coroutine runs", default=None)


def current_call() -> Call | None:
    """The call whose coroutine makes this call, or a task or a thread that has its context; None once it has ended."""
    handling = _CURRENT.get()
    call = handling.call if handling is not None else None
    return call if call is not None and call.is_under_way else None


def handling_of_context() -> Handling | None:
    """What the caller's context knows of a call, whether or not that has ended."""
    return _CURRENT.get()


def in_context(command: Callable[[], T]) -> Callable[[], T]:
    """`command`, bound to the caller's call on whichever thread it runs; unchanged outside a call."""
    return partial(copy_context().run, command) if _CURRENT.get() is not None else command


def leave_call(context: Context) -> None:
    """Remove the current call, if any, from a context that may have been copied from a coroutine."""
    if context.get(_CURRENT) is not None:
        context.run(_CURRENT.set, None)


class Line:
    """The calls of one key. Handler thread, unless a field says otherwise."""

    __slots__ = ("active", "limit", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit: int = limit  # of `active`; never changes
        self.active: int = 0  # calls that are ready or have begun, and have not ended
        # Calls after those, oldest first. The handler thread appends; it and the loop pop, and whose pop gets a call
        # lets that begin.
        self.waiting: deque[Call] = deque()


class Lane:
    """The events of one AsyncioHandler on one dispatcher. Handler thread, unless a method says otherwise."""

    lets_loop_begin = True
    """After a success, the loop may give the slot to the next event of the key. Never changes."""

    def __init__(self, handler: AsyncioHandler, loop: AbstractEventLoop, owner: LaneOwner) -> None:
        from dispatcher.dispatching.eager import start_task  # it imports asyncio, as a loop has

        self.handler = handler  # never changes, like all fields that do not say otherwise
        self.loop = loop
        self._start_task = start_task
        self.owner = owner  # of the lanes of one dispatcher
        # Calls that have not ended, oldest first; handler thread writes, any thread copies. The other collections refer
        # to the same calls: `calls` alone is trusted, because the keys' `__eq__` is foreign.
        self.calls: dict[Call, None] = {}
        self._lines: dict[Hashable, Line] = {}  # by key; handler thread
        # Calls that wait for their key, and those that the handler thread has not seen go on; handler thread writes,
        # any reads.
        self._waiting = 0
        # A heap of the calls that wait for a slot, each with its number; handler thread writes, any reads its length.
        self._ready: list[tuple[int, Call]] = []
        self._running = 0  # calls that have begun; handler thread
        self.numbers: count[int] = count(1)  # of the calls, in their order; handler thread
        self._inbox: deque[Call] = deque()  # handler thread and loop append, the loop pops
        # `_start_waiting` runs, or will. It clears this before its last look at the inbox; the handler thread reads it
        # after appending.
        self._is_awake = False

    def line_of(self, event: Any) -> tuple[Hashable, Line]:
        """The event's key, and the calls of that key. Without a key, events run one after another.

        Raises:
            Exception: raised by the user's function, or by the key.
        """
        key = self.handler.key(event)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(self.handler.per_key if key is not None else 1)
        return key, line

    def is_full(self) -> bool:
        """Whether a call waits for a slot, or more calls wait for their keys than may. Any thread."""
        return bool(self._ready) or self._waiting > self.handler.max_waiting

    def put(self, call: Call) -> None:
        """Let the call begin as soon as its key and the slots allow."""
        self.calls[call] = None
        if call.line.active >= call.line.limit:
            self._waiting += 1
            call.line.waiting.append(call)
        elif self._ready or self._running >= self.handler.capacity:
            self._make_ready(call)
        else:
            call.is_ready = True
            call.line.active += 1
            self._begin(call)

    def release(self, call: Call) -> None:
        """The call has ended: let the next one of its key, or an older one of another key, have its slot."""
        del self.calls[call]
        if call.successor is not None:  # it has the slot already
            self._waiting -= 1
            return
        line = call.line
        line.active -= 1
        self._running -= 1
        following = _pop(line.waiting)
        if following is not None:
            self._waiting -= 1
            self._make_ready(following)
        elif not line.active:
            self._forget_key(call.key)
        self._begin_ready()

    def take_waiting(self, line: Line) -> list[Call]:
        """Remove the calls that wait for their key, and return them, oldest first."""
        taken = []
        while (call := _pop(line.waiting)) is not None:
            taken.append(call)
            del self.calls[call]
        self._waiting -= len(taken)
        return taken

    def drop_unstarted(self) -> list[Call]:
        """Remove the calls that were not given to the loop, and return them."""
        dropped = [call for _, call in self._ready]
        self._ready.clear()
        for call in dropped:
            call.line.active -= 1
            del self.calls[call]
        for line in {call.line for call in self.calls} | {call.line for call in dropped}:
            dropped += self.take_waiting(line)
        return sorted(dropped, key=attrgetter("number"))

    def give_up(self) -> list[Call]:
        """Remove all calls, cancel their coroutines, and return them."""
        given_up = list(self.calls)
        self.calls.clear()
        self._lines.clear()
        self._ready.clear()
        self._waiting = self._running = 0
        for call in given_up:
            _forget_handling(call)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._cancel, call)
        return given_up

    def fail_if_closed(self) -> None:
        """If the loop is closed, end the calls that were given to it: nothing else will."""
        if not self.loop.is_closed():
            return
        self._inbox.clear()  # the loop pops no more
        for call in list(self.calls):
            if call.started_ns and not call.ended_ns:
                self._end(call, EventLoopClosedError(self.handler))
        self.owner.report()

    def _make_ready(self, call: Call) -> None:
        call.is_ready = True
        call.line.active += 1
        heappush(self._ready, (call.number, call))

    def _begin_ready(self) -> None:
        """Give free slots to the calls that were put first."""
        while self._ready and self._running < self.handler.capacity:
            self._begin(heappop(self._ready)[1])

    def _begin(self, call: Call) -> None:
        """Give the call a slot, and to the loop, which `wake` wakes."""
        self._running += 1
        self.owner.stamp(call)
        self._inbox.append(call)

    def wake(self) -> None:
        """Have the loop begin the calls that were given to it, which wait for this."""
        if not self._inbox or (self._is_awake and not self.loop.is_closed()):
            return
        self._is_awake = True
        try:
            self.loop.call_soon_threadsafe(self._start_waiting)
        except RuntimeError:  # the loop is closed
            self._is_awake = False
            self.fail_if_closed()

    def waits_for(self, call: Call) -> str:
        """What keeps a call that has not begun, for the log. Any thread."""
        return f"one of {self.handler.capacity} coroutines to end" if call.is_ready else "earlier events of its key"

    def _forget_key(self, key: Hashable) -> None:
        try:
            self._lines.pop(key, None)
        except BaseException as error:  # raised by the key; its empty line stays, and serves the next event
            reraise_interrupt(error)

    # -- on the loop ---------------------------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        """Start the coroutines of the calls in the inbox, for a while: then others on the loop have their turn."""
        self._is_awake = True
        until_ns = perf_counter_ns() + _TURN_NS
        try:
            while self._inbox and perf_counter_ns() < until_ns:
                self._start(self._inbox.popleft())
        finally:
            self._is_awake = False
            if self._inbox:
                self._is_awake = True
                self.loop.call_soon(self._start_waiting)
            self.owner.report()

    def _start(self, call: Call) -> None:
        if not call.is_under_way:  # given up meanwhile
            return
        if call.entry is not None and not call.entry.begin():
            call.is_withdrawn = True
            self._end(call, None)
            return
        handling = call.handling = Handling(call)
        context = call.context.copy() if call.context is not None else copy_context()
        call.thread_id = get_ident()
        try:
            context.run(_CURRENT.set, handling)
            call.coroutine = coroutine = context.run(self.handler.function, call.event)
            call.task, ended = self._start_task(self.loop, coroutine, context)
        except BaseException as error:  # e.g. the function takes other arguments
            self._end(call, _without_this_frame(error))
            if isinstance(error, KeyboardInterrupt | SystemExit):  # which end the loop
                raise
            return
        if ended is not None:
            self._finish(handling, ended)
        else:
            call.task.add_done_callback(partial(self._on_done, handling))

    def _on_done(self, handling: Handling, task: Task[Any]) -> None:
        self._finish(handling, task)
        if self._is_awake:  # `_start_waiting` comes next, and reports
            return
        if self._inbox:
            self._start_waiting()
        else:
            self.owner.report()

    def _finish(self, handling: Handling, task: Ended) -> None:
        try:
            error = task.exception()  # or a KeyboardInterrupt, which the loop has raised already
        except BaseException as cancelled:
            error = _without_this_frame(cancelled)
        call = handling.call
        if call is not None:  # not given up meanwhile
            if error is None and call.entry is not None and call.entry.ask is not None:
                call.value = task.result()
            self._end(call, error)

    def _cancel(self, call: Call) -> None:
        if call.task is not None:
            call.task.cancel()

    def _end(self, call: Call, error: BaseException | None) -> None:
        """Any thread: the loop's, or the handler thread once the loop is closed."""
        _forget_handling(call)
        call.error = error
        call.ended_ns = perf_counter_ns()
        # After an error the handler thread decides whether the next of the key may begin, and also if a call of another
        # key waits for the slot.
        may_follow = error is None and call.line.waiting and not self._ready and self.lets_loop_begin
        if may_follow and not self.owner.is_abandoned():
            call.successor = successor = _pop(call.line.waiting)
            if successor is not None:
                self.owner.stamp(successor)
                self._inbox.append(successor)
        self.owner.end(call)


def _pop(waiting: deque[Call]) -> Call | None:
    """The first call, or None. Several threads may pop."""
    try:
        return waiting.popleft() if waiting else None
    except IndexError:  # another thread was faster
        return None


def _forget_handling(call: Call) -> None:
    """The call has ended. Its tasks and threads may go on; from now on they post as producers from outside."""
    call.is_under_way = False
    if call.handling is not None:
        call.handling.call = None


def _without_this_frame(error: BaseException) -> BaseException:
    """The error without the frame that caught it: that refers to the call, which will refer to the error."""
    return error.with_traceback(error.__traceback__.tb_next if error.__traceback__ is not None else None)


def describe_call(call: Call) -> str:
    """The event of a call and where its coroutine is, as several lines for the log. Any thread."""
    about = text_of(call.event)
    loop, coroutine = call.lane.loop, call.coroutine
    if not call.started_ns:
        return f"{about}, which waits for {call.lane.waits_for(call)}"
    what = f"{about}, for {plain_seconds((perf_counter_ns() - call.started_ns) / 1e9)}"
    if coroutine is None:
        state = "is closed" if loop.is_closed() else "runs" if loop.is_running() else "does not run"
        return f"{what}. Its coroutine has not begun; its event loop {state}"
    try:
        return f"{what}. It is here:\n{_stack(call, coroutine)}"
    except Exception as error:  # the coroutine has moved on meanwhile
        return f"{what}. Where it is could not be read: {text_of(error)}"


def _stack(call: Call, coroutine: Any) -> str:
    """The frames of a coroutine, outermost first, and what it awaits; of its thread, if it blocks that."""
    awaits = coroutine
    summary = traceback.StackSummary()
    while awaits is not None and len(summary) < _MOST_FRAMES:
        if getattr(awaits, "cr_running", False):
            stack = stack_of(call.thread_id)
            return "".join(stack.format()).rstrip() if stack is not None else "(its thread has ended)"
        if not CAN_READ_FRAMES:
            code = coroutine.cr_code
            summary.append(traceback.FrameSummary(code.co_filename, code.co_firstlineno, code.co_name))
            break
        frame = getattr(awaits, "cr_frame", None) or getattr(awaits, "gi_frame", None)
        if frame is None:
            break
        summary.extend(traceback.StackSummary.extract([(frame, frame.f_lineno)]))
        awaits = getattr(awaits, "cr_await", None) or getattr(awaits, "gi_yieldfrom", None)
    lines = "".join(summary.format()).rstrip()
    waiter = getattr(call.task, "_fut_waiter", None)
    return f"{lines}\n  awaiting {text_of(waiter)}" if waiter is not None else lines
