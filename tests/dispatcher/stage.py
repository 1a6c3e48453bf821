"""One dispatcher over virtual time, as the stage of scenarios that are data (`tests/kit/scenarios.py`).

An event is a number, or a number with a key: `2` or `2:a`. Times are in ms. The verbs:

    post, nowait, later, ask EVENT...   the calls of the dispatcher
    after, at MS EVENT [key=K]          post_after, and post_at so many ms after the beginning
    every MS EVENT [key=K first=MS]     post_every; of `3..`, a factory makes 3, 4 and so on
    cancel NUMBER...                    the newest ask or scheduled event of each number
    drop KEY...                         the scheduled event of each key
    mail WORD..., fail                  mails that return the words, and one that raises `error`
    drain                               a wait for the drain begins
    hold [EVENT]                        the handler thread stays in this event, or in a mail
    release                             it goes on, and the threads of `begin` end
    begin VERB ...                      the verb in another thread, up to where it waits or ends
    end                                 those that do not stop the dispatcher end before that
    +MS, +MS/STEP                       time passes in steps of up to 100 ms, or STEP, each to the next timer and a rest
    logged                              each post_later so far has its answer
    stop, ended                         a stop, and a wait until one that came from elsewhere has ended
    restart, crash [MS]                 a stop, or a kill as far as the journal tells, and so much later the next start

The looks: `seen` (numbers as the handler got them), `seen_at` (ms:number), `attempts` (number:attempt), `letters`
(number:attempts:error), what the calls returned or raised (`posted`, `later`, `answers`, `cancelled`), `due` (of each
scheduled event, or `-`), `keys` and `dues` (key:ms), `mails` (what each returned), `waits` for the drain, `waiting`
(producers), `remaining` (room), `left` (how many events a crash would leave to the next start), `state`, `failure`
(class, text and state), `is_drained`, `is_stopped`, and every field of the statistics.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from dispatcher import AsyncDispatcher, DeadLetter, DispatcherConfig, JournalConfig, JournalWriter
from dispatcher.journal import recover
from dispatcher.mailbox import RejectedExecutionError
from dispatcher.testing import ManualClock

from ..kit import TIMEOUT_S, Work, until
from ..kit.scenarios import play

NOON_MS: Final = 1_800_000_000_000
Rows = dict[str, tuple[str, dict[str, Any]]]


@dataclass
class Item:
    """An event that a journal can keep."""

    type: Work
    number: int
    lock_key: str | None = None


def item(word: str) -> Item:
    number, _, key = word.partition(":")
    return Item(Work.DO, int(number), key or None)


def scenarios(rows: Rows) -> Any:
    """Parametrize a test by `script` and `options`, the arguments of the Stage; the promise is the name of its row."""
    return pytest.mark.parametrize(("script", "options"), rows.values(), ids=rows)


def perform(script: str, **options: Any) -> Stage:
    """Play the script on a new stage; at its end, each accepted event is in one place, and each future is done."""
    stage = Stage(**options)
    try:
        play(stage, script)
    finally:
        stage.close()
    return stage


class Stage:
    """Takes options of `register`, DispatcherConfig and AsyncDispatcher by their names, and what the handler does.

    `fails`: how often the handler raises `error` at the event of each number; otherwise it returns `then(event)`.
    `journal`: the folder of a write-ahead journal, and `writer` the options of its JournalConfig.
    """

    def __init__(
        self,
        *,
        fails: dict[int, int] | None = None,
        error: type[BaseException] = OSError,
        then: Callable[[Item], Any] = lambda event: event.number,
        on_error: Any = "continue",
        coalesce_by: Callable[[Any], Any] | None = None,
        journal: Path | None = None,
        writer: dict[str, Any] | None = None,
        is_started: bool = True,
        **options: Any,
    ) -> None:
        self.clock = ManualClock(NOON_MS)
        self.seen: list[int] = []
        self.seen_at: list[str] = []
        self.attempts: list[str] = []
        self.letters: list[DeadLetter] = []
        self.results: dict[str, list[Any]] = {
            name: [] for name in ("posted", "later", "answers", "cancelled", "due", "mails", "waits")
        }
        self._fails, self._error, self._then = dict(fails or {}), error, then
        self._handles: dict[int, Any] = {}  # the newest ask or scheduled event of each number
        self._held: int | None = None  # the number at which the handler stays
        self._is_held = False
        self._entered, self._opened = threading.Event(), threading.Event()
        self._threads: list[tuple[str, threading.Thread]] = []
        self._register = {"on_error": on_error, "coalesce_by": coalesce_by}
        self._config = DispatcherConfig(**{n: options.pop(n) for n in DispatcherConfig.model_fields if n in options})
        self._options = {"time_service": self.clock, "dead_letters": self.letters.append, **options}
        self._journal, self._writer = journal, {"write_ahead": True, **(writer or {})}
        self._copies = 0
        self.dispatcher = self._make()
        if is_started:
            self.dispatcher.start()

    def _make(self) -> AsyncDispatcher:
        journal = None if self._journal is None else JournalWriter(self._journal, JournalConfig(**self._writer))
        dispatcher = AsyncDispatcher(self._config, journal=journal, **self._options)
        dispatcher.register(Work, self._handle, **self._register, **({} if journal is None else {"events": Item}))
        dispatcher.init()
        return dispatcher

    def _handle(self, event: Item) -> Any:
        if event.number == self._held:
            self._stay()
        self.seen.append(event.number)
        self.seen_at.append(f"{self._now()}:{event.number}")
        self.attempts.append(f"{event.number}:{self.dispatcher.attempt()}")
        if self._fails.get(event.number, 0):
            self._fails[event.number] -= 1
            raise self._error(event.number)
        return self._then(event)

    def _stay(self) -> None:
        self._entered.set()
        assert self._opened.wait(TIMEOUT_S)

    def _now(self) -> int:
        return self.clock.current_processing_time() - NOON_MS

    def close(self) -> None:
        self._let_go()
        self.dispatcher.set_drain_events_on_stop(False)  # a script that is about the drain has a `stop`
        self.dispatcher.stop()
        assert self.dispatcher.wait_for_service_to_stop(TIMEOUT_S)
        self._join("")
        stats = self.dispatcher.stats()
        waiting = stats.queue_size + stats.in_hand + stats.retrying
        assert stats.accepted == stats.handled + stats.failed + stats.discarded + waiting, stats
        assert "..." not in map(_text, self.results["later"] + self.results["answers"])

    # -- what happens --------------------------------------------------------------------------------------------------

    def play(self, verb: str, *words: str) -> None:
        if verb.startswith("+"):
            self.advance(*map(int, verb[1:].split("/")))
        else:
            getattr(self, verb)(*words)

    def start(self) -> None:
        self.dispatcher.start()

    def post(self, *events: str) -> None:
        self._call("posted", self.dispatcher.post, events)

    def nowait(self, *events: str) -> None:
        self._call("posted", self.dispatcher.post_nowait, events)

    def later(self, *events: str) -> None:
        self._call("later", self.dispatcher.post_later, events)

    def ask(self, *events: str) -> None:
        self._call("answers", self.dispatcher.ask, events)

    def after(self, ms: str, event: str, *options: str) -> None:
        self._call("due", lambda one: self.dispatcher.post_after(int(ms) / 1000, one, **_given(options)), [event])

    def at(self, ms: str, event: str, *options: str) -> None:
        unix_s = (NOON_MS + int(ms)) / 1000
        self._call("due", lambda one: self.dispatcher.post_at(unix_s, one, **_given(options)), [event])

    def every(self, ms: str, event: str, *options: str) -> None:
        numbers = count(int(event.removesuffix("..")))
        what = (lambda _: lambda: item(str(next(numbers)))) if event.endswith("..") else lambda one: one
        self._call(
            "due",
            lambda one: self.dispatcher.post_every(int(ms) / 1000, what(one), **_given(options)),
            [event.removesuffix("..")],
        )

    def _call(self, where: str, call: Callable[[Item], Any], events: Iterable[str]) -> None:
        for each in map(item, events):
            try:
                result = self._handles[each.number] = call(each)
            except Exception as error:
                result = error
            self.results[where].append(result)

    def logged(self) -> None:
        until(lambda: "..." not in map(_text, self.results["later"]), "the answers")

    def cancel(self, *numbers: str) -> None:
        self.results["cancelled"] += [self._handles[int(number)].cancel() for number in numbers]

    def drop(self, *keys: str) -> None:
        self.results["cancelled"] += [self.dispatcher.cancel(key) for key in keys]

    def mail(self, *words: str) -> None:
        for word in words:
            self.results["mails"].append(self.dispatcher.mailbox_executor.submit(lambda word=word: word))  # type: ignore[misc]

    def fail(self) -> None:
        def raise_error() -> None:
            raise self._error("bad mail")

        self.dispatcher.mailbox_executor.execute(raise_error)

    def drain(self) -> None:
        self.results["waits"].append(self.dispatcher.core.when_drained())

    def hold(self, event: str | None = None) -> None:
        self._entered.clear()
        self._opened.clear()
        self._is_held = True
        if event is None:
            self.dispatcher.mailbox_executor.execute(self._stay, "hold")
        else:
            self._held = item(event).number
            self.post(event)
        assert self._entered.wait(TIMEOUT_S)

    def release(self) -> None:
        self._let_go()
        self._join("")
        self._rest()

    def _let_go(self) -> None:
        self._held, self._is_held = None, False
        self._opened.set()

    def begin(self, verb: str, *words: str) -> None:
        queue = self.dispatcher.core.queue
        waiting, phase = len(queue.room.waiters), queue.phase
        thread = threading.Thread(target=self.play, args=(verb, *words), daemon=True)
        self._threads.append((verb, thread))
        thread.start()
        until(
            lambda: not thread.is_alive() or len(queue.room.waiters) > waiting or queue.phase != phase,
            f"{verb} waits or ends",
        )

    def end(self) -> None:
        self._join(but="stop")

    def _join(self, but: str) -> None:
        for verb, thread in self._threads:
            if verb != but:
                thread.join(TIMEOUT_S)
                assert not thread.is_alive(), verb

    def advance(self, ms: int, step_ms: int = 100) -> None:
        self._rest()
        self.clock.advance(0)  # what is due comes now, not amid the first step: the handler reads the clock
        self._rest()
        end_ms = self.clock.current_processing_time() + ms
        while (left_ms := end_ms - self.clock.current_processing_time()) > 0:
            self.clock.advance(min(left_ms, step_ms, self._until_next_timer() or step_ms))
            self._rest()

    def _until_next_timer(self) -> int:
        return max(0, (self.clock.next_timer_ms() or 0) - self.clock.current_processing_time())

    def _rest(self) -> None:
        """Wait until the handler thread has done what it can at this time."""
        with suppress(RejectedExecutionError, CancelledError):  # it has stopped
            if not self._is_held:
                until(self._is_at_rest, "the dispatcher rests")
                self.dispatcher.mailbox_executor.submit(lambda: None).result(TIMEOUT_S)  # the last event has ended

    def _is_at_rest(self) -> bool:
        queue = self.dispatcher.core.queue
        is_on_its_way = self._journal is not None and queue.shutdown.under_way  # into the journal
        return not (is_on_its_way or self.dispatcher.has_work() or self.dispatcher.stats().in_hand)

    def stop(self) -> None:
        self.dispatcher.stop()

    def ended(self) -> None:
        assert self.dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    def restart(self, later_ms: str = "0") -> None:
        self.stop()
        self._start_again(later_ms)

    def crash(self, later_ms: str = "0") -> None:
        self._journal = self._copy_of_journal()
        seen = len(self.seen)
        self.dispatcher.set_drain_events_on_stop(False)
        self._let_go()
        self.stop()
        del self.seen[seen:], self.seen_at[seen:], self.attempts[seen:]  # of the run that is dead
        self._start_again(later_ms)

    def _start_again(self, later_ms: str) -> None:
        self.clock.advance(int(later_ms))
        self.dispatcher = self._make()
        self.dispatcher.start()

    def _copy_of_journal(self) -> Path:
        assert self._journal is not None
        self._copies += 1
        copy: Path = shutil.copytree(self._journal, self._journal.with_name(f"{self._journal.name}-{self._copies}"))
        return copy

    # -- what is seen --------------------------------------------------------------------------------------------------

    def look(self, what: str) -> Iterable[object]:
        match what:
            case "seen" | "seen_at" | "attempts":
                return list(getattr(self, what))
            case "letters":
                return [f"{each.event.number}:{each.attempts}:{type(each.error).__name__}" for each in self.letters]
            case "due":
                return [_ms(each) if hasattr(each, "due") else _text(each) for each in self.results["due"]]
            case "posted" | "later" | "answers" | "cancelled" | "mails":
                return map(_text, self.results[what])
            case "waits":
                return ["ended" if each.done() else "..." for each in self.results[what]]
            case "is_drained" | "is_stopped":
                return [getattr(self.dispatcher, what)()]
            case "state":
                return [self.dispatcher.state.name]
            case "failure":
                cause, state = self.dispatcher.failure_cause, self.dispatcher.failure_state
                return [] if cause is None or state is None else [type(cause).__name__, cause, state.name]
            case "keys":
                return self.dispatcher.scheduled()
            case "dues":
                return [f"{key}:{_ms(one)}" for key, one in self.dispatcher.scheduled().items()]
            case "left":
                return [len(recover(self._copy_of_journal()).accepted)]
            case "waiting":
                return [len(self.dispatcher.core.queue.room.waiters)]
            case "remaining":
                return [self.dispatcher.core.queue.room.remaining()]
        value = getattr(self.dispatcher.stats(), what)
        return [f"{_name(key)}:{number}" for key, number in value.items()] if isinstance(value, dict) else [value]


def _given(options: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments from words such as `first=500` (ms) and `key=nightly`."""
    given: dict[str, Any] = dict(option.split("=") for option in options)
    return given | {name: int(given[name]) / 1000 for name in ("first", "misfire_grace_s") if name in given}


def _text(result: Any) -> str:
    if isinstance(result, Future):
        if not result.done():
            return "..."
        return "withdrawn" if result.cancelled() else _text(result.exception() or result.result())
    if isinstance(result, BaseException):
        reason = getattr(result, "reason", "")
        return type(result).__name__ + (reason and f":{reason}")
    return str(result)


def _ms(scheduled: Any) -> str:
    return "-" if scheduled.due is None else str(round(scheduled.due * 1000) - NOON_MS)


def _name(key: Any) -> str:
    return ".".join(key) if isinstance(key, tuple) else str(key)
