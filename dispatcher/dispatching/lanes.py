"""Lanes: the way of events to the coroutines of one `async def` handler, and back.

    handler thread --inbox--> event loop: a task for each event --ended--> handler thread

The handler thread decides what runs. An event first waits for its key, until fewer than `per_key` events of that key
have begun and not ended, and then for one of the `capacity` slots. So an event that waits for its key takes no slot
from other keys. The loop starts the coroutines that it is given and reports their ends. Each side writes its own fields
of a Call before it passes the call on.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from contextvars import Context, ContextVar, copy_context
from functools import partial
from heapq import heappop, heappush
from itertools import count
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from dispatcher.errors import EventLoopClosedError
from dispatcher.event import AsyncioHandler
from dispatcher.queue.entry import Entry
from dispatcher.util.figures import plain_seconds
from dispatcher.util.foreign import reraise_interrupt, text_of
from dispatcher.util.frames import stack_of

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

    from dispatcher.routes import Route

_MOST_FRAMES: Final = 50
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


class LaneOwner(Protocol):
    """The lanes of one dispatcher. Any thread."""

    def now_ns(self) -> int: ...

    def record_later(self, handling: Handling) -> None:
        """Have the handler thread record the transitions of an event whose row is written."""


class Call:
    """One event on its way through a lane."""

    __slots__ = (
        "accepted_seq",
        "at",
        "context",
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
        "task",
        "thread_id",
        "value",
    )

    def __init__(
        self, event: Any, entry: Entry | None, enqueued_ns: int, lane: Lane, route: Route, context: Context | None
    ) -> None:
        """`context`: in which its coroutine begins; None: any. Handler thread.

        Raises:
            Exception: raised by the user's function for the key, or by the key.
        """
        self.event = event  # never changes, like all fields that do not say otherwise
        self.enqueued_ns = enqueued_ns  # of perf_counter_ns; 0: not measured
        self.entry = entry  # None: it has none, or is tried again; the handler thread resets it
        self.accepted_seq = entry.accepted_seq if entry is not None else 0  # 0: not in the log; handler thread
        self.is_redelivered = entry is not None and entry.is_redelivered
        self.lane = lane
        self.route = route
        self.context = context
        self.key, self.line = lane.line_of(event)
        self.number = next(lane.numbers)
        self.is_ready = False  # its key lets it begin; handler thread writes, any reads
        self.started_ns = 0  # when it was given to the loop; 0: not yet; handler thread writes
        self.at = 0  # the same on the clock of the run, Unix ns; handler thread writes
        self.is_under_way = False  # given to the loop, and not ended or given up; both sides write, any thread reads
        self.is_withdrawn = False  # by its caller, before its coroutine began; the loop writes
        self.handling: Handling | None = None  # once the coroutine begins; the loop writes
        # What has become of it: the loop writes, any thread reads.
        self.task: Task[Any] | None = None
        self.thread_id = 0
        self.error: BaseException | None = None
        self.value: Any = None  # what it returned, if it was asked
        self.ended_ns = 0


class Handling:
    """The call, in the context of its coroutine and of the tasks and threads that this starts. These may outlive it."""

    __slots__ = ("call", "owner", "seq", "transitions")

    def __init__(self, call: Call) -> None:
        self.owner = call.lane.owner  # never changes
        # What it has done to state machines, until its row has its seq; any thread appends, and then reads `seq`. The
        # handler thread sets `seq`, and then takes what is there.
        self.transitions: list[CallTransition] = []
        self.seq = 0  # of the event's row in the journal; 0: none yet
        # None once the call has ended: a context keeps no event, and a task, which a call refers to, leads to no cycle.
        # The loop or the handler thread resets it, any thread reads it.
        self.call: Call | None = call

    def add_transition(
        self, machine: str, entity: str, from_state: str, event_type: str, to_state: str, *, valid: bool
    ) -> None:
        """As TransitionOrigin. Any thread that works for the coroutine."""
        at = self.owner.now_ns()
        self.transitions.append(CallTransition(machine, from_state, event_type, to_state, valid, entity, at))
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
    """The calls of one key. Handler thread."""

    __slots__ = ("active", "limit", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit  # of `active`; never changes
        self.active = 0  # calls that are ready or have begun, and have not ended
        self.waiting: deque[Call] = deque()  # calls after those, oldest first


class Lane:
    """The events of one AsyncioHandler on one dispatcher. Handler thread, unless a method says otherwise.

    `on_begin(call)` is called before a call goes to the loop, `on_ended(call)` once it has ended, on any thread.
    """

    def __init__(
        self,
        handler: AsyncioHandler,
        loop: AbstractEventLoop,
        owner: LaneOwner,
        on_begin: Callable[[Call], None],
        on_ended: Callable[[Call], None],
    ) -> None:
        self.handler = handler  # never changes, like all fields that do not say otherwise
        self.loop = loop
        self.owner = owner  # of the lanes of one dispatcher
        self._on_begin = on_begin
        self._on_ended = on_ended
        # Calls that have not ended, oldest first; handler thread writes, any thread copies. The other collections refer
        # to the same calls: `calls` alone is trusted, because the keys' `__eq__` is foreign.
        self.calls: dict[Call, None] = {}
        self._lines: dict[Hashable, Line] = {}  # by key; handler thread
        self._waiting = 0  # calls that wait for their key; handler thread writes, any reads
        # A heap of the calls that wait for a slot, each with its number; handler thread writes, any reads its length.
        self._ready: list[tuple[int, Call]] = []
        self._running = 0  # calls that have begun; handler thread
        self.numbers = count(1)  # of the calls, in their order; handler thread
        self._inbox: deque[Call] = deque()  # handler thread appends, the loop pops
        # The loop will look at the inbox. It clears this before it looks; the handler thread reads it after appending.
        self._is_awake = False

    def line_of(self, event: Any) -> tuple[Hashable, Line]:
        """The event's key, and the calls of that key. Without a key, events run one after another.

        Raises:
            Exception: raised by the user's function, or by the key.
        """
        key = self.handler.key(event)
        return key, self._lines.setdefault(key, Line(self.handler.per_key if key is not None else 1))

    def is_full(self) -> bool:
        """Whether a call waits for a slot, or more calls wait for their keys than may. Any thread."""
        return bool(self._ready) or self._waiting > self.handler.max_waiting

    def put(self, call: Call) -> None:
        """Let the call begin as soon as its key and the slots allow."""
        self.calls[call] = None
        if call.line.active < call.line.limit:
            self._make_ready(call)
            self._begin_ready()
        else:
            call.line.waiting.append(call)
            self._waiting += 1

    def release(self, call: Call) -> None:
        """The call has ended: let the next one of its key, or an older one of another key, have its slot."""
        line = call.line
        line.active -= 1
        self._running -= 1
        if line.waiting:
            self._waiting -= 1
            self._make_ready(line.waiting.popleft())
        elif not line.active:
            self._forget_key(call.key)
        self._begin_ready()

    def take_waiting(self, line: Line) -> list[Call]:
        """Remove the calls that wait for their key, and return them, oldest first."""
        taken = list(line.waiting)
        line.waiting.clear()
        self._waiting -= len(taken)
        for call in taken:
            del self.calls[call]
        return taken

    def drop_unstarted(self) -> list[Call]:
        """Remove the calls that were not given to the loop, and return them."""
        dropped = [call for call in self.calls if not call.started_ns]
        for call in dropped:
            call.line.waiting.clear()
            call.line.active -= call.is_ready
            del self.calls[call]
        self._ready.clear()
        self._waiting = 0
        return dropped

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

    def _make_ready(self, call: Call) -> None:
        call.is_ready = True
        call.line.active += 1
        heappush(self._ready, (call.number, call))

    def _begin_ready(self) -> None:
        """Give free slots to the calls that were put first."""
        while self._ready and self._running < self.handler.capacity:
            self._running += 1
            self._begin(heappop(self._ready)[1])

    def _begin(self, call: Call) -> None:
        self._on_begin(call)
        call.is_under_way = True
        self._inbox.append(call)
        if self._is_awake and not self.loop.is_closed():
            return
        self._is_awake = True
        try:
            self.loop.call_soon_threadsafe(self._start_waiting)
        except RuntimeError:  # the loop is closed
            self._is_awake = False
            self.fail_if_closed()

    def _forget_key(self, key: Hashable) -> None:
        try:
            self._lines.pop(key, None)
        except BaseException as error:  # raised by the key; its empty line stays, and serves the next event
            reraise_interrupt(error)

    # -- on the loop ---------------------------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        self._is_awake = False
        while self._inbox:
            call = self._inbox.popleft()
            if call.is_under_way:
                context = call.context if call.context is not None else copy_context()
                context.run(self._start, call)

    def _start(self, call: Call) -> None:
        if call.entry is not None and not call.entry.begin():
            call.is_withdrawn = True
            self._end(call, None)
            return
        handling = call.handling = Handling(call)
        _CURRENT.set(handling)
        call.thread_id = get_ident()
        try:
            task = call.task = self.loop.create_task(self.handler.function(call.event))
        except Exception as error:  # e.g. the function takes other arguments
            self._end(call, _without_this_frame(error))
            return
        task.add_done_callback(partial(self._on_done, handling))

    def _on_done(self, handling: Handling, task: Task[Any]) -> None:
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
        self._on_ended(call)


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
    loop, task = call.lane.loop, call.task
    if not call.started_ns:
        what = (
            f"one of {call.lane.handler.capacity} coroutines to end" if call.is_ready else "earlier events of its key"
        )
        return f"{about}, which waits for {what}"
    what = f"{about}, for {plain_seconds((perf_counter_ns() - call.started_ns) / 1e9)}"
    if task is None:
        state = "is closed" if loop.is_closed() else "runs" if loop.is_running() else "does not run"
        return f"{what}. Its coroutine has not begun; its event loop {state}"
    try:
        return f"{what}. It is here:\n{_stack(call, task)}"
    except Exception as error:  # the coroutine has moved on meanwhile
        return f"{what}. Where it is could not be read: {text_of(error)}"


def _stack(call: Call, task: Task[Any]) -> str:
    """The frames of a coroutine, outermost first, and what it awaits; of its thread, if it blocks that."""
    awaits: Any = task.get_coro()
    summary = traceback.StackSummary()
    while awaits is not None and len(summary) < _MOST_FRAMES:
        if getattr(awaits, "cr_running", False):
            stack = stack_of(call.thread_id)
            return "".join(stack.format()).rstrip() if stack is not None else "(its thread has ended)"
        frame = getattr(awaits, "cr_frame", None) or getattr(awaits, "gi_frame", None)
        if frame is None:
            break
        summary.extend(traceback.StackSummary.extract([(frame, frame.f_lineno)]))
        awaits = getattr(awaits, "cr_await", None) or getattr(awaits, "gi_yieldfrom", None)
    lines = "".join(summary.format()).rstrip()
    waiter = getattr(task, "_fut_waiter", None)
    return f"{lines}\n  awaiting {text_of(waiter)}" if waiter is not None else lines
