"""The `async def` handlers of one dispatcher: their events are in hand until their coroutines have ended.

A handler raises EventTaken, and the handler thread goes on to the next event. The end of a coroutine comes back as
mail: the handler thread counts the event, follows the error policy, writes the row, and lets the next event of that key
begin.

At the first event that has to wait for one of a handler's slots, or for its key once as many do as may, the dispatcher
takes no more events, so that they stay in the queue with its bound and in their order. Mail still runs.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from functools import partial
from threading import current_thread
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from dispatcher.dispatching.batches import BatchDispatching
from dispatcher.dispatching.error_policy import ErrorPolicy
from dispatcher.dispatching.lanes import (
    BeginsLater,
    Call,
    EventTaken,
    Handling,
    Lane,
    current_call,
    describe_call,
    handling_of_context,
    in_context,
    leave_call,
)
from dispatcher.dispatching.monitor import check_every_ms
from dispatcher.dispatching.times import BatchProgress
from dispatcher.dispatching.timing import Timing
from dispatcher.dispatching.turns import RatedLane, Turns
from dispatcher.errors import MailboxClosedError, NoEventInHandError
from dispatcher.event import AsyncioHandler, Handler, handling_callable, is_async
from dispatcher.mailbox.executor import MailboxExecutor
from dispatcher.mailbox.mail import MIN_PRIORITY, Mail
from dispatcher.mailbox.processor import MailboxController, MailboxProcessor, Suspension
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.mailbox.time_service import ProcessingTimeService
from dispatcher.queue.entry import enqueued_ns_of
from dispatcher.queue.flags import ABANDONED
from dispatcher.retry import OnError, Retry
from dispatcher.util.figures import counted
from dispatcher.util.foreign import fields_of, kinds_of, tell, type_of
from dispatcher.util.threads import start_or_postpone

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from dispatcher.config import DispatcherConfig
    from dispatcher.dispatching.lane_counts import LaneNow
    from dispatcher.journal.writer import TransitionOrigin
    from dispatcher.routes import Route

log: logging.Logger = logging.getLogger("dispatcher.async_dispatcher")

_MOST_DESCRIBED: Final = 3


class Coroutines:
    """The coroutines of one dispatcher. Handler thread, unless a method says otherwise.

    `connect` comes before the first event. `loop` runs the handlers that name no loop of their own. The timers' thread
    of `time_service()` notices a loop that was closed, and logs a coroutine that runs longer than
    `handler_warn_after_s`.
    """

    def __init__(
        self,
        name: str,
        config: DispatcherConfig,
        mailbox: TaskMailbox,
        progress: BatchProgress,
        loop: AbstractEventLoop | None,
        time_service: Callable[[], ProcessingTimeService],
        timing: Timing,
    ) -> None:
        self._name = name  # never changes, like all fields that do not say otherwise
        self._mailbox = mailbox
        self._progress = progress
        self._loop = loop
        self._time_service = time_service
        self._retries = timing.retries
        self._alarm = timing.alarm
        self._turns: Turns | None = None  # of handlers with a rate; made for the first one under `_bind_lock`
        self._warn_after_s = config.handler_warn_after_s
        self._check_every_ms = check_every_ms(config)
        # By `_identity` of the handler. A lane lives as long as a registration or events in hand need it. Any thread
        # adds, under the lock, which is a leaf but for the inbox's.
        self._lanes: WeakValueDictionary[tuple[int, int], Lane] = WeakValueDictionary()
        self._bind_lock = threading.Lock()
        # Those with events in hand, which an unregistered handler ends as well; handler thread writes, any copies.
        self._busy: dict[Lane, None] = {}
        self._ended: deque[Call] = deque()  # loops append, the handler thread pops
        # A mail that looks at `_ended` waits. Its run clears this before it looks; loops read it after appending.
        self._has_mail = False
        self.count: int = 0  # events in hand here; handler thread writes, any reads
        self._suspension: Suspension | None = None  # while a lane is full; handler thread writes
        self._has_given_up = False  # handler thread
        self._is_watched = False  # `_check` is called at intervals, or will be; handler thread
        self._timer: Future[None] | None = None  # a handler thread, once
        self._warned_of_ns = 0  # when the last coroutine that was logged began; the timers' thread

    def connect(self, dispatching: BatchDispatching, errors: ErrorPolicy, processor: MailboxProcessor) -> None:
        """Connect the dispatcher's other parts, which are made after this one. They never change."""
        self._dispatching = dispatching
        self._queue = dispatching.queue
        self._flags = dispatching.queue.flags
        self._routes = dispatching.routes
        self._errors = errors
        self._times = dispatching.times
        self._journaled = dispatching.journaled
        self._slow_ns = dispatching.slow.limit_ns
        self._processor = processor
        self._controller = MailboxController(processor)

    def executor(self) -> MailboxExecutor:
        """The dispatcher's executor; a command that a coroutine sends belongs to that coroutine's event."""
        run_nested = Mail.run if self._journaled is None else self._journaled.run_nested
        is_idle = self._processor.is_idle
        return MailboxExecutor(self._mailbox, MIN_PRIORITY, is_idle=is_idle, bind=in_context, run_nested=run_nested)

    # -- any thread ----------------------------------------------------------------------------------------------------

    def bind(self, handler: Handler, keeps_context: bool, on_error: OnError) -> Callable[[Any], Any]:
        """The callable that the handler thread calls with each event of the handler, be it `async def` or plain.

        `keeps_context`: the handler runs in the context of the event's post. `on_error`: a Retry may keep its events in
        their order by key.

        Raises:
            TypeError: it is not a handler, or is an `async def` and no loop was given.
        """
        if is_async(handler):
            handle = self._bind_async(handler, keeps_context)
        else:
            handle = handling_callable(handler)
            if keeps_context:
                handle = partial(self._handle_in_context, handle)
        is_ordered = on_error.ordered_by_key if isinstance(on_error, Retry) else not isinstance(on_error, str)
        return BeginsLater(self._retries.in_order, handle) if is_ordered else handle

    def _bind_async(self, handler: Handler, keeps_context: bool) -> Callable[[Any], Any]:
        declared = handler if isinstance(handler, AsyncioHandler) else AsyncioHandler(handler)
        loop = declared.loop or self._loop
        if loop is None:
            return handling_callable(handler)  # raises, and says what to do
        key = _identity(handler)
        with self._bind_lock:
            lane = self._lanes.get(key)
            if lane is None:  # the lane keeps the handler alive, so that no other gets its id
                self._lanes[key] = lane = self._new_lane(declared, loop)
        return BeginsLater(self._take, lane, keeps_context)

    def _new_lane(self, handler: AsyncioHandler, loop: AbstractEventLoop) -> Lane:
        """Under `_bind_lock`."""
        if handler.rate is None:
            return Lane(handler, loop, self)
        if self._turns is None:
            self._turns = Turns(self._queue, self._alarm, self._send)
        return RatedLane(handler, loop, self, handler.rate, self._turns)

    def is_inside(self) -> bool:
        """Whether the caller is a coroutine of this dispatcher that has not ended."""
        call = current_call()
        return call is not None and call.lane.owner is self

    def would_wait_for_itself(self, handler: Handler, event: Any) -> bool:
        """Whether the caller is a coroutine that keeps the handler's coroutine for this event from beginning.

        Raises:
            Exception: raised by the user's function for the key, or by the key.
        """
        call = current_call()
        if call is None or call.lane is not self._lanes.get(_identity(handler)):
            return False
        return call.lane.handler.capacity == 1 or bool(call.lane.handler.key(event) == call.key)

    def transition_origin(self, is_made: bool) -> TransitionOrigin:
        """What the caller's transitions belong to, if the caller is no plain handler.

        The handler thread's work between events, mail above all, is no event; its transitions get a row of their own.
        """
        handling = handling_of_context()
        if handling is not None and handling.owner is self:
            if is_made or handling.call is not None:
                return handling
            raise NoEventInHandError(self._name, "the event of this task or thread has ended")
        if not self._mailbox.is_mailbox_thread():
            raise NoEventInHandError(self._name, f"{current_thread().name} handles none of its events")
        if self._is_nested():
            raise NoEventInHandError(self._name, "this is mail, which runs while a handler yields")
        assert self._journaled is not None  # only its journal asks
        running = self._processor.running()
        return self._journaled.between_events(running[0] if running is not None else None)

    def is_on_loop(self) -> bool:
        """Whether the caller's thread runs the event loop of a handler, which blocks with that thread."""
        if not self._lanes:
            return False
        running = running_loop()
        lanes = (reference() for reference in self._lanes.valuerefs())
        return running is not None and any(lane is not None and lane.loop is running for lane in lanes)

    def is_for_this_loop(self) -> bool:
        """Whether the caller runs a handler's loop, or the dispatcher's, whose handlers may come later."""
        return self.is_on_loop() or (self._loop is not None and self._loop is running_loop())

    def is_used(self) -> bool:
        """Whether an `async def` handler is registered or at work."""
        return bool(self._lanes)

    def now_ns(self) -> int:
        """The time on the clock of the run; 0 without a journal."""
        return 0 if self._journaled is None else self._journaled.now_ns(perf_counter_ns())

    def is_abandoned(self) -> bool:
        """Whether no further event begins. Any thread."""
        return self._flags.phase >= ABANDONED

    def stamp(self, call: Call) -> None:
        """Note when the call goes to its loop. Any thread."""
        call.started_ns = perf_counter_ns()
        if self._journaled is not None:
            call.at = self._journaled.now_ns(call.started_ns)

    def end(self, call: Call) -> None:
        """The call has ended; `report` follows. Any thread."""
        self._ended.append(call)

    def report(self) -> None:
        """Have the handler thread look at the calls that have ended. Any thread."""
        if self._ended and not self._has_mail:
            self._has_mail = True
            self._send(self._collect, "coroutines have ended")

    def record_later(self, handling: Handling) -> None:
        """Have the handler thread record the transitions of an event whose row is written. Any thread."""
        self._send(partial(self._record, handling), "record transitions of an event that has ended")

    def turns_taken(self) -> None:
        """Calls have had their turns: the loop of the handler thread may go on. Handler thread."""
        self._resume_if_possible()
        self.wake()

    def nudge(self) -> None:
        """Let the handler thread look at the queue's phase: once ABANDONED, no further event begins."""
        if self._lanes:
            self._send(self._drop_unstarted_if_abandoned, "look at the phase of the stop")

    def give_up_soon(self) -> None:
        """Let the handler thread give up on the events in hand here."""
        self._send(self.give_up, "give up on coroutines")

    def describe(self) -> str:
        """Where the oldest events in hand here are, as several lines for the log."""
        return _describe(self._all_calls())

    def describe_holdup(self) -> str | None:
        """Where the coroutines are that keep events in the queue, if none has begun for `handler_warn_after_s`."""
        calls = self._all_calls(lambda lane: lane.is_full())
        begun = [call.started_ns for call in calls if call.started_ns]
        if self._warn_after_s is None or not begun or perf_counter_ns() - max(begun) < self._warn_after_s * 1e9:
            return None
        return f"a handler has as many events in hand as it takes at a time. {_describe(calls)}"

    def lanes(self, limit: int) -> list[LaneNow]:
        """What each handler has in hand, with its `limit` keys with the most events that wait."""
        from dispatcher.dispatching.lane_counts import lane_now

        return [lane_now(lane, limit) for lane in self._busy_lanes()]

    def _busy_lanes(self) -> list[Lane]:
        return list(self._busy.copy())

    def _all_calls(self, of: Callable[[Lane], bool] = lambda _: True) -> list[Call]:
        """The calls in hand of such lanes; those that were given to their loops first, oldest first."""
        calls = [call for lane in self._busy_lanes() if of(lane) for call in lane.calls.copy()]
        return sorted(calls, key=lambda call: call.started_ns or perf_counter_ns())

    def _send(self, action: Callable[[], None], description: str) -> None:
        with contextlib.suppress(MailboxClosedError):  # the dispatcher has ended
            self._mailbox.put(Mail(action, MIN_PRIORITY, description))

    def _check(self) -> None:
        """On the timers' thread, at intervals."""
        for lane in self._busy_lanes():
            if lane.loop.is_closed():
                self._send(lane.fail_if_closed, "a loop is closed")
        calls = self._all_calls()
        if self._warn_after_s is None or not calls or calls[0].started_ns in (0, self._warned_of_ns):
            return
        if perf_counter_ns() - calls[0].started_ns > self._warn_after_s * 1e9:
            self._warned_of_ns = calls[0].started_ns
            seconds = (perf_counter_ns() - calls[0].started_ns) / 1e9
            fields = {**fields_of(self._name, calls[0].event), "seconds": seconds}
            what = describe_call(calls[0])
            tell(log, logging.WARNING, "%s: a coroutine is at work on %s", self._name, what, extra=fields)

    # -- handler thread ------------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """Discard the events in hand here, and cancel their coroutines. In a write-ahead log they stay outstanding."""
        self._has_given_up = True
        self._discard([call for lane in self._busy_lanes() for call in lane.give_up()])
        self._busy.clear()
        self._resume_if_possible()

    def close(self) -> None:
        """The handler thread ends."""
        self.give_up()
        if self._timer is not None:
            self._timer.cancel()

    def _handle_in_context(self, handle: Callable[[Any], Any], event: Any) -> Any:
        """The handler of a class that keeps contexts."""
        context = self._context()
        leave_call(context)
        return context.run(handle, event)

    def _context(self) -> Context:
        """The context in which the event in hand was posted; an empty one if it was not kept."""
        entry = self._progress.entry_in_hand()
        context = entry.delivery.context if entry is not None and entry.delivery is not None else None
        return context if context is not None else Context()

    def _take(self, lane: Lane, keeps_context: bool, event: Any) -> None:
        """The handler of a lane's events. Raises EventTaken."""
        began_ns = perf_counter_ns()
        context = self._context() if keeps_context else None
        progress, route = self._progress, self._routes.find(type_of(event))
        entry = progress.entry_in_hand()
        call = Call(event, entry, enqueued_ns_of(progress.entry), lane, route, context)
        if not self._is_watched:
            self._is_watched = True
            start_or_postpone(f"{self._name}: the watch over its coroutines", self._watch)
        progress.begun += 1  # within a batch, so that there is no moment at which the event is not in hand
        self.count, progress.entry = self.count + 1, None
        if entry is not None:
            entry.wait()
        if self._has_given_up:
            self._discard([call])
        else:
            self._busy[lane] = None
            lane.put(call)
            if lane.is_full():
                self._suspend()
            if self._suspension is not None or not self._is_followed(route):
                self.wake()
        self._times.note_taken(perf_counter_ns() - began_ns)
        raise EventTaken

    def _is_followed(self, route: Route) -> bool:
        """Whether the batch goes on with an event of the same handler, so that one wake-up of the loop is enough."""
        following = self._dispatching.following()
        return following is not None and self._routes.find(type_of(following)).handle is route.handle

    def wake(self) -> None:
        """Have the loops begin what was given to them."""
        for lane in self._busy:
            lane.wake()

    def _watch(self) -> None:
        """Raises NO_THREAD: the timers have none."""
        every_ms = self._check_every_ms
        timer = self._time_service().schedule_with_fixed_delay(lambda _: self._check(), every_ms, every_ms)
        self._timer = timer
        if self._has_given_up:  # it ended meanwhile
            timer.cancel()

    def _collect(self) -> None:
        """Finish the calls in `_ended`. Mail, sent when the first of them ended."""
        self._has_mail = False
        while self._ended:
            call = self._ended.popleft()
            if call in call.lane.calls:  # not given up meanwhile
                self._finish(call)
        self._resume_if_possible()
        self.wake()
        self._flush_if_due()

    def _record(self, handling: Handling) -> None:
        if self._journaled is not None:
            self._journaled.add_transitions(handling)
            self._flush_if_due()

    def _flush_if_due(self) -> None:
        if self._journaled is not None and not self._is_nested():
            self._journaled.flush_if_due(waits=self._suspension is not None)

    def _finish(self, call: Call) -> None:
        """The event's coroutine has ended, or its caller has withdrawn it."""
        if not call.is_withdrawn:
            self._account(call)
        if self._flags.phase >= ABANDONED:  # before the slot is free
            self._drop_unstarted_if_abandoned()
        lane = call.lane
        lane.release(call)
        if not lane.calls:
            self._busy.pop(lane, None)
        self.count -= 1
        self._progress.done += 1

    def _account(self, call: Call) -> None:
        """Count the event of a call that has ended, and write its row. Handler thread."""
        is_nested, outcome, error = self._is_nested(), "handled", call.error
        if error is None:
            if call.entry is not None:
                call.entry.end("handled", call.route, call.value)
            else:
                call.route.handled += 1
        else:
            outcome, error = self._errors.failed(call.event, error, call, ends_later=self._journaled is not None)
            if outcome == "retried":
                self._hold_back_behind(call)
                call.accepted_seq = 0
        call.entry = None  # it has ended, or waits for its next attempt
        if self._journaled is not None:
            self._journaled.add_row(call, outcome, error, is_nested=is_nested)
        if call.ended_ns - call.started_ns > self._slow_ns:
            call.route.slow += 1
        self._times.note_coroutine(call.route, call.started_ns, call.ended_ns, call.enqueued_ns)

    def _hold_back_behind(self, call: Call) -> None:
        """The call's event is tried again: if that keeps events in order, those of its key leave the lane, and wait
        behind it."""
        behind = self._retries.behind(call.event)
        if behind is None:
            return
        for each in call.lane.take_waiting(call.line):
            if each.entry is None or each.entry.begin():
                self._retries.wait_behind(behind, each.event, each.entry)
            self.count -= 1
            self._progress.done += 1

    def _is_nested(self) -> bool:
        """Whether this is mail to which a handler has yielded."""
        return self._progress.begun - self._progress.done > self.count

    def _suspend(self) -> None:
        """Take no more events. A mail ends the current batch."""
        if self._suspension is None:
            self._suspension = self._controller.suspend_default_action()
            self._send(self._flush_if_due, "end the batch: a handler takes no more events")

    def _resume_if_possible(self) -> None:
        if self._suspension is not None and not any(lane.is_full() for lane in self._busy):
            self._suspension.resume()
            self._suspension = None

    def _drop_unstarted_if_abandoned(self) -> None:
        if self._flags.phase >= ABANDONED:
            self._discard([call for lane in self._busy_lanes() for call in lane.drop_unstarted()])
            for lane in self._busy_lanes():
                if not lane.calls:
                    del self._busy[lane]
            self._resume_if_possible()

    def _discard(self, calls: list[Call]) -> None:
        if not calls:
            return
        for call in calls:
            if call.entry is None:
                self._queue.count_dropped("stop", 1)
            elif call.entry.begin():  # otherwise it was withdrawn
                call.entry.end("stop")
        self.count -= len(calls)
        self._progress.done += len(calls)
        contents = kinds_of(call.event for call in calls)
        message = "%s: stop discarded %s whose coroutines had not ended: %s"
        fields = {"dispatcher": self._name, "count": len(calls)}
        tell(log, logging.WARNING, message, self._name, counted(len(calls), "event"), contents, extra=fields)


def running_loop() -> AbstractEventLoop | None:
    """The event loop that the caller's thread runs."""
    from asyncio import get_running_loop

    try:
        return get_running_loop()
    except RecursionError:
        raise
    except RuntimeError:  # none runs
        return None


def _describe(calls: list[Call]) -> str:
    more = f"\nand {len(calls) - _MOST_DESCRIBED} more" if len(calls) > _MOST_DESCRIBED else ""
    return "\n".join(describe_call(call) for call in calls[:_MOST_DESCRIBED]) + more


def _identity(handler: Any) -> tuple[int, int]:
    """Equal for equal bound methods: each look-up of a method makes a new object."""
    owner, function = getattr(handler, "__self__", None), getattr(handler, "__func__", None)
    return (id(handler), 0) if owner is None or function is None else (id(owner), id(function))
