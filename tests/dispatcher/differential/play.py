"""Play scripts on the dispatcher that PYTHONPATH leads to: PYTHONPATH=TREE python play.py SEED...

Prints where that dispatcher is, then what comes out: one JSON line for each seed.

Only the public API is used. Before each step the dispatcher is at rest, so what comes out does not depend on timing.
At rest is a dispatcher whose handler thread is inside one event, at the closed gate, or has nothing queued; of one with
`async def` handlers, each coroutine that has begun is at the gate. Time is a ManualClock's. It advances from timer to
timer, while a mail holds the handler thread: what the timers post is handled once all of them have fired. A crash is a
copy of the journal's folder, made at rest, on which the next dispatcher starts.
"""

from __future__ import annotations

import asyncio
import dataclasses
import faulthandler
import inspect
import json
import logging
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from script import FACTORY_FROM, KEYS, Plan, Script, make_script

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    JournalConfig,
    JournalWriter,
    Retry,
    ServiceState,
    aio,
)
from dispatcher.journal import EVENTS, TRANSITIONS, read_rows
from dispatcher.mailbox import RejectedExecutionError
from dispatcher.testing import ManualClock

TIMEOUT_S = 20.0
"""Of each wait; all succeed at once unless something is broken."""
SEED_TIMEOUT_S = 60.0
FULL_TIMEOUT_S = 0.001
"""How long a post waits for room in a full queue, which nothing makes meanwhile."""
START_MS = 1_000_000
START_AHEAD_MS = 4_000_000_000_000
"""In the year 2096."""
MOST_ADVANCES = 10
"""How often time advances to a next attempt during a drain before no more events are posted periodically."""
DELAY_S = 0.907
"""Of a Retry. No event of a handler is due at the same moment: in write-ahead mode the journal's thread schedules the
attempt, once it has its line, so the order of the two would be open."""
STATS = (
    "accepted",
    "in_hand",
    "queue_size",
    "retrying",
    "scheduled",
    "scheduled_fired",
    "scheduled_skipped",
    "dead_letters",
    "discarded_by_reason",
    "rejected",
    "handled_by_type",
    "failed_by_type",
    "retried_by_type",
)
ROW_COLUMNS = ("dispatcher", "event_class", "event_type", "entity", "outcome", "error", "payload", "redelivered")
TRANSITION_COLUMNS = ("machine", "entity", "from_state", "event_type", "to_state", "valid")


class Work(Enum):
    DO = 1
    MORE = 2


class Other(Enum):
    """Events of these have no handler at first."""

    DO = 1


class Latest(Enum):
    """Of these, a newer event may supersede the queued one of its key."""

    IS = 1


class State(Enum):
    OLD = 1
    NEW = 2


TYPES: dict[str, Enum] = {"Work.DO": Work.DO, "Work.MORE": Work.MORE, "Other.DO": Other.DO, "Latest.IS": Latest.IS}


@dataclass
class WorkEvent:
    type: Work
    number: int
    lock_key: str

    @property
    def entity(self) -> str:
        return f"e{self.number}"


@dataclass
class OtherEvent(WorkEvent):
    type: Other  # type: ignore[assignment]


@dataclass
class LatestEvent(WorkEvent):
    type: Latest  # type: ignore[assignment]


CLASSES: dict[type[Enum], Callable[..., Any]] = {Work: WorkEvent, Other: OtherEvent, Latest: LatestEvent}


STEP: ContextVar[int] = ContextVar("STEP", default=-1)
"""The number of the step in which an event was posted or scheduled."""


class Boom(Exception):
    """Fails an attempt; a Retry tries again."""


class Odd(Exception):
    """Fails an event; no Retry tries again."""


class NotAtRest(Exception):
    """The dispatcher did not come to rest."""


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = monotonic() + TIMEOUT_S
    while not condition():
        if monotonic() > deadline:
            raise NotAtRest(what)
        sleep(0)


def told(call: Callable[[], Any]) -> Any:
    """What the call returns, or the class of what it raises."""
    try:
        return call()
    except NotAtRest:
        raise
    except (Exception, CancelledError) as error:
        reason = getattr(error, "reason", None)
        return [type(error).__name__] + ([reason] if reason else [])


def by_name(counts: Any) -> Any:
    if not isinstance(counts, dict):
        return counts
    return {".".join(key) if isinstance(key, tuple) else key: count for key, count in sorted(counts.items())}


class Gate:
    """Where handlers stay while it is closed. Any thread."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.is_closed = False  # guarded by `changed`, like the next one
        self.holds: list[tuple[int, Callable[[], Any]]] = []  # the events inside, and how each is let go

    @property
    def is_holding(self) -> bool:
        return bool(self.holds)

    def enter(self, number: int) -> None:
        """Stay, on the handler thread."""
        passed = threading.Event()
        if self._hold(number, passed.set) and not passed.wait(SEED_TIMEOUT_S):
            raise NotAtRest(f"event {number} was not let go")

    async def enter_async(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        passed: asyncio.Future[None] = loop.create_future()
        if self._hold(number, lambda: loop.call_soon_threadsafe(passed.set_result, None)):
            await passed

    def _hold(self, number: int, let_go: Callable[[], Any]) -> bool:
        with self.changed:
            if self.is_closed:
                self.holds.append((number, let_go))
                self.changed.notify_all()
            return self.is_closed

    def close(self) -> None:
        with self.changed:
            self.is_closed = True

    def open(self) -> None:
        with self.changed:
            self.is_closed = False
        while self.let_one():
            pass

    def let_one(self) -> bool:
        """Let the first by its number go; the others, and the next ones, stay. Coroutines come here in any order."""
        with self.changed:
            if not self.holds:
                return False
            first = min(self.holds, key=lambda hold: hold[0])
            self.holds.remove(first)  # before the handler goes on: it no longer counts as held
            _, let_go = first
        let_go()
        return True

    def notify(self) -> None:
        with self.changed:
            self.changed.notify_all()


class Run:
    """One dispatcher, from its making to its end. The driving thread, unless a method says otherwise."""

    def __init__(self, script: Script, folder: Path | None, start_ms: int, loop: asyncio.AbstractEventLoop) -> None:
        self.script, self.config = script, script.config
        self.folder = folder
        self.loop = loop
        self.clock = ManualClock(start_ms)
        self.gate = Gate()
        self.is_dead = False  # it has crashed: its handlers do nothing
        self.is_started = False
        self.made = 0  # events that factories have made
        self.seen: list[list[Any]] = []  # what handlers and dead letters tell, each with its key; any thread appends
        self.told = 0  # how many of these were told
        self.exits: list[int] = []  # a thread of the dispatcher's appends
        self.scheduled: list[Any] = []
        self.rhythms: list[Any] = []  # those of them that are periodic
        self.asks: list[tuple[int, Future[Any]]] = []
        self.laters: list[tuple[int, Future[bool]]] = []
        self.journal = self._journal()
        self.dispatcher = self._dispatcher()

    # -- making --------------------------------------------------------------------------------------------------------

    def _journal(self) -> JournalWriter | None:
        if self.folder is None:
            return None
        is_ahead = self.config.journal == "write_ahead"
        return JournalWriter(self.folder, JournalConfig(write_ahead=is_ahead, durability="none"))

    def _dispatcher(self) -> AsyncDispatcher:
        config, bounds = self.config, {}
        if config.capacity is not None:
            bounds = {"queue_capacity": config.capacity, "queue_full_policy": config.policy}
            if config.policy == "block":
                bounds["queue_full_timeout_s"] = FULL_TIMEOUT_S
        dispatcher = AsyncDispatcher(
            DispatcherConfig(
                batch_size=config.batch_size, drain_timeout_s=TIMEOUT_S, handler_warn_after_s=None, **bounds
            ),
            name="played",
            journal=self.journal,
            time_service=self.clock,
            clock_ns=self.clock.current_time_ns if self.journal is not None and config.has_virtual_rows else None,
            dead_letters=self._take_letter if config.has_letters else None,
            exit_action=self.exits.append,
        )
        options: dict[str, Any] = {"on_error": self._on_error(), "context": config.keeps_context}
        dispatcher.register(Work, self._handler(), events=WorkEvent, **options)
        latest_key = (lambda event: event.lock_key) if config.coalesces else None
        dispatcher.register(Latest, self._handler(), events=LatestEvent, coalesce_by=latest_key, **options)
        dispatcher.register(Other, self._handle_other, events=OtherEvent)
        dispatcher.unregister(Other, self._handle_other)
        return dispatcher

    def _handler(self) -> Any:
        if not self.config.is_async:
            return self._handle
        capacity, most_waiting = self.config.lane
        return aio.AsyncioHandler(self._handle_async, loop=self.loop, capacity=capacity, max_waiting=most_waiting)

    def _on_error(self) -> Any:
        config = self.config
        if config.on_error in ("continue", "stop", "exit"):
            return config.on_error
        retry = Retry(
            attempts=3,
            delay_s=DELAY_S,
            factor=2.0,
            jitter=0.0,
            on=Boom,
            then=config.then,  # type: ignore[arg-type]
            ordered_by_key=config.on_error == "ordered",
        )
        if config.on_error == "callable":
            policies = "continue", retry, dataclasses.replace(retry, ordered_by_key=True)
            return lambda event, error: policies[event.number % 3]
        return retry

    def event(self, number: int) -> Any:
        plan = self.plan(number)
        event_type = TYPES[plan.type]
        return CLASSES[type(event_type)](event_type, number, plan.key)

    def plan(self, number: int) -> Plan:
        return self.script.events[number] if number < FACTORY_FROM else Plan("Work.DO", KEYS[number % len(KEYS)])

    def make_event(self) -> Any:
        """A factory of `post_every`."""
        self.made += 1
        return self.event(FACTORY_FROM + self.made)

    # -- handlers ------------------------------------------------------------------------------------------------------

    def _handle(self, event: Any) -> int:
        if not self._begin(event):
            return -1
        self.gate.enter(event.number)
        return self._act(event)

    async def _handle_async(self, event: Any) -> int:
        if not self._begin(event):
            return -1
        await self.gate.enter_async(event.number)
        return self._act(event)

    def _handle_other(self, event: Any) -> int:
        return self._act(event) if self._begin(event) else -1

    def _begin(self, event: Any) -> bool:
        if self.is_dead:
            return False
        told_of = self.dispatcher.attempt(), self.dispatcher.is_redelivering()
        self.seen.append([_domain(event), "begins", event.number, *told_of, STEP.get()])
        return True

    def _act(self, event: Any) -> int:
        for action in () if self.is_dead else self.plan(event.number).actions:
            kind, *arguments = action
            if kind == "raise":
                if self.dispatcher.attempt() <= arguments[0]:
                    raise Boom(event.number)
            elif kind == "odd":
                raise Odd(event.number)
            else:
                told_of = told(lambda kind=kind, arguments=arguments: self._act_once(event, kind, *arguments))
                self.seen.append([_domain(event), kind, *arguments, told_of])
        return int(event.number)

    def _act_once(self, event: Any, kind: str, *arguments: Any) -> Any:
        dispatcher = self.dispatcher
        if kind == "post":
            return dispatcher.post(self.event(arguments[0]))
        if kind == "nowait":
            return dispatcher.post_nowait(self.event(arguments[0]))
        if kind == "later":
            self.laters.append((arguments[0], dispatcher.post_later(self.event(arguments[0]))))
            return None
        if kind == "ask":
            return dispatcher.ask(self.event(arguments[0])).done()
        if kind == "after":
            one = dispatcher.post_after(arguments[0], self.event(arguments[1]))
            if not self.config.is_async:
                self.scheduled.append(one)
            return one.due
        if kind == "cancel":
            return self._cancel_scheduled(arguments[0])
        if kind == "stop":
            dispatcher.set_drain_events_on_stop(arguments[0])
            return dispatcher.stop()
        assert kind == "transition"
        assert self.journal is not None
        return self.journal.transition("Thing", event.entity, State.OLD, event.type, State.NEW, valid=True)

    def _take_letter(self, letter: Any) -> None:
        if not self.is_dead:
            what = [type(letter.error).__name__, letter.attempts]
            self.seen.append([_domain(letter.event), "dead letter", letter.event.number, *what])

    # -- rest ----------------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Wait until the dispatcher is at rest; one that stops is let end."""
        self._await_rest()
        if self.is_started and self.dispatcher.state is ServiceState.STOPPED:
            self.let_end()

    def _await_rest(self) -> None:
        deadline = monotonic() + TIMEOUT_S
        before: Any = None
        while self.is_started and not self.dispatcher.is_stopped():
            is_held = self._ping_all()
            # What a thread or a coroutine has still to do shows within a round. So nothing is left if nothing changes:
            # a mail may run before an event that is queued, and all counts be even again once that is in hand.
            now = [self._stats(), len(self.seen), sorted(number for number, _ in self.gate.holds)]
            if is_held or (now == before and (self.gate.is_holding or not self.dispatcher.queue_size())):
                return
            before = now
            if monotonic() > deadline:
                raise NotAtRest(f"{self.dispatcher.stats()}, {self.gate.holds}, {self.seen[-5:]}")

    def _ping_all(self) -> bool:
        """Let the handler thread, the event loop and the journal's thread do what they have to.

        Returns whether the handler thread is in an event at the gate.
        """
        for _ in range(2 if self.config.is_async else 1):
            is_held = self._ping()
            if self.config.is_async:
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(TIMEOUT_S)
            until(self._is_journal_at_rest, "the journal's thread")
        return self._ping() if self.config.is_async else is_held

    def _ping(self) -> bool:
        """Wait until the handler thread is between two events, has ended, or is in an event at the gate.

        Returns whether the last is so.
        """
        try:
            ping = self.dispatcher.mailbox_executor.submit(lambda: None, "ping")
        except RejectedExecutionError:
            self.dispatcher.wait_for_service_to_stop(TIMEOUT_S)
            until(self.dispatcher.is_stopped, "the handler thread's end")
            return False
        ping.add_done_callback(lambda _: self.gate.notify())
        with self.gate.changed:
            is_told = self.gate.changed.wait_for(lambda: ping.done() or self._is_held(), TIMEOUT_S)
        if not is_told:
            raise NotAtRest(f"no mail is run: {self.dispatcher.stats()}")
        ping.cancel()
        return self._is_held()

    def _is_held(self) -> bool:
        """Whether the handler thread is in an event at the gate. A coroutine there leaves that thread free."""
        return self.gate.is_holding and not self.config.is_async

    def _is_journal_at_rest(self) -> bool:
        """No event is on its way into the log, and the thread that brings them there waits for the next one.

        Nothing public tells the latter, and it schedules the next attempt at an event as its last act. But its stack
        does: that thread waits in its outermost function, and works in others.
        """
        if self.journal is None or self.config.journal != "write_ahead":
            return True
        if self.journal.under_way or not all(posted.done() for _, posted in self.laters):
            return False
        frames = sys._current_frames()
        for thread in threading.enumerate():
            if self.folder is not None and thread.name == f"write-ahead-{self.folder.name}":
                frame = frames.get(thread.ident or 0)
                if frame is None or frame.f_code.co_name != "_run":
                    return False
        return True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the handler thread between two events. One that is at the gate, or has ended, is held anyway."""
        entered, released = threading.Event(), threading.Event()
        if self.is_started and not self._is_held() and not self.dispatcher.is_stopped():

            def hold() -> None:
                entered.set()
                released.wait(SEED_TIMEOUT_S)

            try:
                self.dispatcher.mailbox_executor.execute(hold, "hold the handler thread")
            except RejectedExecutionError:
                pass
            else:
                until(lambda: entered.is_set() or self.dispatcher.is_stopped(), "the handler thread's pause")
        try:
            yield
        finally:
            released.set()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self, kind: str, *arguments: Any) -> Any:
        """Take one step; returns what it tells."""
        return getattr(self, f"do_{kind}")(*arguments)

    def do_start(self) -> Any:
        has_started = threading.Event()

        # Otherwise a stop by a handler would be carried out by this thread, at the end of the start, or by another one.
        self.dispatcher.mailbox_executor.execute(lambda: has_started.wait(TIMEOUT_S), "wait for the end of the start")
        try:
            self.dispatcher.init()
            result = told(self.dispatcher.start)
            self.is_started = True
        finally:
            has_started.set()
        return result

    def do_post(self, number: int) -> Any:
        return told(lambda: self.dispatcher.post(self.event(number)))

    def do_post_nowait(self, number: int) -> Any:
        result = told(lambda: self.dispatcher.post_nowait(self.event(number)))
        until(self._is_journal_at_rest, "the event of a post_nowait, on its way through the log")
        return result

    def do_post_later(self, number: int) -> Any:
        def post() -> Any:
            posted = self.dispatcher.post_later(self.event(number))
            self.laters.append((number, posted))
            return posted.result(TIMEOUT_S)

        return told(post)

    def do_ask(self, number: int) -> Any:
        def ask() -> None:
            self.asks.append((number, self.dispatcher.ask(self.event(number))))
            until(self._is_journal_at_rest, "the event of an ask, on its way through the log")

        return told(ask)

    def do_burst(self, posts: list[list[Any]]) -> Any:
        with self.paused():
            return [self.step(*post) for post in posts]

    def do_after(self, seconds: float, number: int, key: str) -> Any:
        return self._schedule(lambda: self.dispatcher.post_after(seconds, self.event(number), **_key(key)))

    def do_at(self, seconds: float, number: int, key: str) -> Any:
        unix_s = self.clock.current_processing_time() / 1000 + seconds
        return self._schedule(lambda: self.dispatcher.post_at(unix_s, self.event(number), **_key(key)))

    def do_every(self, period_s: float, first_s: float | None, number: int, key: str) -> Any:
        what = self.event(number) if number else self.make_event

        def post() -> Any:
            self.rhythms.append(self.dispatcher.post_every(period_s, what, first=first_s, key=key))
            return self.rhythms[-1]

        return self._schedule(post)

    def _schedule(self, post: Callable[[], Any]) -> Any:
        def schedule() -> Any:
            one = post()
            self.scheduled.append(one)
            return one.due

        return told(schedule)

    def do_cancel_scheduled(self, index: int) -> Any:
        return told(lambda: self._cancel_scheduled(index))

    def _cancel_scheduled(self, index: int) -> Any:
        if not self.scheduled:
            return None
        one = self.scheduled[index % len(self.scheduled)]
        return [one.cancel(), one.is_done(), one.due]

    def do_cancel_key(self, key: str) -> Any:
        return told(lambda: self.dispatcher.cancel(key))

    def do_scheduled(self, prefix: str) -> Any:
        found = self.dispatcher.scheduled(prefix)
        return [[key, one.due, one.is_done()] for key, one in found.items()]

    def do_cancel_ask(self, index: int) -> Any:
        if not self.asks:
            return None
        number, answer = self.asks[index % len(self.asks)]
        return [number, told(answer.cancel)]

    def do_cancel_later(self, index: int) -> Any:
        if not self.laters:
            return None
        number, posted = self._laters()[index % len(self.laters)]
        return [number, told(posted.cancel)]

    def do_advance(self, ms: int) -> Any:
        target_ms, raised = self.clock.current_processing_time() + ms, []
        while True:
            next_ms = self.clock.next_timer_ms()
            is_last = next_ms is None or next_ms > target_ms
            result = self._advance_to(target_ms if is_last or next_ms is None else next_ms)
            if result is not None:
                raised.append(result)
            self.rest()
            if is_last:
                return raised

    def _advance_to(self, to_ms: int) -> Any:
        with self.paused():
            return told(lambda: self.clock.advance(max(0, to_ms - self.clock.current_processing_time())))

    def do_close(self) -> None:
        self.gate.close()

    def do_let_one(self) -> None:
        self.gate.let_one()

    def do_open(self) -> None:
        self.gate.open()

    def do_drained(self) -> Any:
        if not self.is_started:
            return None
        is_drained = self.dispatcher.is_drained()
        if is_drained or self.dispatcher.is_stopped():
            return [is_drained, self.dispatcher.await_drained(TIMEOUT_S)]
        return [is_drained, self.dispatcher.await_drained(0.001)]

    def do_register_other(self) -> Any:
        """A second registration makes two handlers of the class."""
        return told(lambda: self.dispatcher.register(Other, self._handle_other, events=OtherEvent))

    def do_unregister_other(self) -> Any:
        return self.dispatcher.unregister(Other, self._handle_other)

    def do_stop(self, drains: bool, posts: list[list[Any]]) -> Any:
        told_of: list[Any] = []
        if not drains and self.gate.is_holding and (self.config.is_async or not self.dispatcher.queue_size()):
            self.gate.open()  # nothing public tells when the stop has got to where it no longer begins events
            self.rest()
        self.dispatcher.set_drain_events_on_stop(drains)
        stopping = threading.Thread(target=self.dispatcher.stop, daemon=True)
        is_over = not self.is_started or self.dispatcher.is_stopped()
        stopping.start()
        if not is_over:
            if drains:
                until(lambda: self.dispatcher.view.is_draining() or self.dispatcher.is_stopped(), "the drain")
                if self.gate.is_holding:
                    told_of = [self.step(*post) for post in posts]
                self.let_end()
            elif self.gate.is_holding:
                until(lambda: not (self.dispatcher.queue_size() or self.dispatcher.stats().retrying), "the discard")
                self.gate.open()
        self.gate.open()
        stopping.join(TIMEOUT_S)
        if stopping.is_alive():
            raise NotAtRest("the stop does not return")
        if self.config.on_error == "exit" and self.dispatcher.failure_cause is not None:
            until(lambda: bool(self.exits), "the exit action")
        return [type(self.dispatcher.failure_cause).__name__, self.exits, told_of]

    def let_end(self) -> None:
        """The dispatcher stops: let handlers go on, and time up to what the drain waits for, until it has ended."""
        advances = 0
        while not self.dispatcher.is_stopped():
            self.gate.open()
            self._await_rest()
            next_ms = self.clock.next_timer_ms()
            if not self.dispatcher.is_stopped() and self.dispatcher.stats().retrying and next_ms is not None:
                advances += 1
                if advances == MOST_ADVANCES:  # events of a post_every that fail, and are tried again, have no end
                    for one in (*self.rhythms, *self.dispatcher.scheduled().values()):  # those of earlier runs as well
                        one.cancel()
                self._advance_to(next_ms)
        self.dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    # -- what comes out ------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What is new since the last time, and the counts."""
        new, self.told = self.seen[self.told :], len(self.seen)
        contents = {str(each): count for each, count in sorted(self.dispatcher.queue_contents().items(), key=str)}
        return {
            "seen": self._in_order(new),
            "held": sorted([_domain(self.event(number)), number] for number, _ in self.gate.holds),
            "stats": dict(zip(STATS, self._stats(), strict=True)),
            "queued": contents,
            "now": self.clock.current_processing_time(),
            "is_stopped": self.dispatcher.is_stopped(),
        }

    def _in_order(self, items: list[list[Any]]) -> list[list[Any]]:
        """Of `async def` handlers, only the order within a key of a class is fixed."""
        return sorted(items, key=lambda item: str(item[0])) if self.config.is_async else items

    def _stats(self) -> list[Any]:
        stats = self.dispatcher.stats()
        return [by_name(getattr(stats, name)) for name in STATS]

    def answers(self) -> dict[str, Any]:
        """Of a dispatcher that has stopped."""
        return {
            "asks": [[number, told(lambda answer=answer: answer.result(TIMEOUT_S))] for number, answer in self.asks],
            "laters": [
                [number, told(lambda posted=posted: posted.result(TIMEOUT_S))] for number, posted in self._laters()
            ],
            "scheduled": [[one.is_done(), one.due] for one in self.scheduled],
        }

    def _laters(self) -> list[tuple[int, Future[bool]]]:
        """By number: a handler may post one before the driving thread has noted the one that it handles."""
        return sorted(self.laters, key=lambda each: each[0])

    def rows(self, folder: Path) -> dict[str, Any]:
        events = [[row.get(name) for name in ROW_COLUMNS] for row in read_rows(folder, EVENTS)]
        transitions = [[row.get(name) for name in TRANSITION_COLUMNS] for row in read_rows(folder, TRANSITIONS)]
        if self.config.is_async:
            events.sort(key=str)
            transitions.sort(key=str)
        return {"events": events, "transitions": transitions}

    def recovered(self) -> list[Any]:
        """What the next start finds in the journal."""
        if self.journal is None:
            return []
        lines = {each.seq: json.loads(each.line) for each in self.journal.recovered}
        for line in tuple(lines.values()):  # both are there if the journal was closed before the row about the first
            lines.pop(line.get("marks", {}).get("replaces"), None)
        return self._in_order([_line(line) for line in lines.values()])

    def crash(self, folder: Path) -> None:
        """Copy the journal as a crash at this moment would leave it."""
        if self.journal is not None and self.folder is not None:
            if not self.dispatcher.is_stopped():
                self.journal.flush_to_disk(amid_event=True)  # otherwise its own thread writes them, at some moment
            shutil.copytree(self.folder, folder)

    def abandon(self) -> None:
        """Let the dispatcher go, whatever it does."""
        self.is_dead = True
        self.gate.open()
        self.dispatcher.set_drain_events_on_stop(False)
        self.dispatcher.stop()
        self.dispatcher.wait_for_service_to_stop(TIMEOUT_S)


def _domain(event: Any) -> str:
    """What the events have in common that keep their order, whatever the handlers."""
    return f"{type(event.type).__name__} {event.lock_key}"


def _key(key: str) -> dict[str, str]:
    return {"key": key} if key else {}


def _line(line: dict[str, Any]) -> list[Any]:
    """Of an accepted event, or of the time of a rhythm: what keeps its order, the event's number, and what is due."""
    event, marks = line.get("event") or {}, line.get("marks", {})
    due = {name: marks[name] for name in ("attempt", "due_ns", "key", "timer", "fired_ns") if name in marks}
    return [f"{line['event_class']} {event.get('lock_key')}", event.get("number"), due]


class Player:
    """Plays one script, over the crashes and restarts of its dispatcher."""

    def __init__(self, script: Script, root: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.script, self.root, self.loop = script, root, loop
        self.runs = 0
        self.out: list[Any] = []
        self.run = self._new_run(START_AHEAD_MS if script.config.is_ahead else START_MS)

    def _folder(self) -> Path | None:
        return self.root / f"run{self.runs}" if self.script.config.journal else None

    def _new_run(self, start_ms: int) -> Run:
        return Run(self.script, self._folder(), start_ms, self.loop)

    def play(self) -> list[Any]:
        try:
            for number, step in enumerate(self.script.steps):
                STEP.set(number)
                result = self._step(*step)
                self.out.append({"step": step, "result": result, **self.run.state()})
                if step[0] == "crash":
                    self.run.abandon()
        except NotAtRest as error:
            self.out.append({"not at rest": str(error)})
        finally:
            self.run.abandon()
        return self.out

    def _step(self, kind: str, *arguments: Any) -> Any:
        run, folder = self.run, self._folder()
        if kind == "crash":
            self.runs += 1
            copy = self._folder()
            assert folder is not None
            assert copy is not None
            run.crash(copy)
            return run.rows(copy)
        if kind == "restart":
            self.run = self._new_run(run.clock.current_processing_time() + arguments[0])
            return self.run.recovered()
        if kind == "stop":
            result: list[Any] = [run.step(kind, *arguments), run.answers()]
            return result + ([run.rows(folder)] if folder is not None else [])
        result = run.step(kind, *arguments)
        run.rest()
        return result


def main(seeds: list[int]) -> None:
    print(json.dumps(inspect.getfile(AsyncDispatcher)))
    logging.disable(logging.CRITICAL)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    for seed in seeds:
        faulthandler.dump_traceback_later(SEED_TIMEOUT_S, exit=True)
        with tempfile.TemporaryDirectory() as folder:
            out = Player(make_script(seed), Path(folder), loop).play()
            print(json.dumps({"seed": seed, "out": out}), flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(list(map(int, sys.argv[1:])))
