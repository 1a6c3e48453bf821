"""Scenarios of the operator: what a row's script can say, and what can be looked at.

A row is its options and its script. Options are those of a Harness; `function` is called for one. Besides:

    output_mode   "either": the row is played in both modes
    idle          a script, of which one step is played whenever the mailbox thread would wait: all of it, by the end
    state         elements to restore
    downstream    True: the output can be shut and opened

Verbs. All but those of the third and fourth lines run the mail, too. "a@5" is a record with a timestamp, "~5" a
watermark, "1+2" the batch of 1 and 2. A batch is answered with a word for each value: "A,B" are two results, "-" none,
"!busy" an error.

    take a b@5 ~5          elements come in             ok a A B      the call is answered with two results
    +100                   time passes                  busy a        it fails with that of ERRORS
    mailed ok a A          its mail has not run         mail, one     all mail runs, or one
    clock 100              time passes, no mail runs    none a        it returns None
    late a                 its answer after its end     shut, open    the output
    end, close, quiesce    the input, operator, mailbox
    feed a b               as take, while there is room

Looks: any count of the operator's metrics, and

    calls, made, sent      the values called, how many they are, how many are counted
    out, stamped           what came out, with its timestamps
    state, raised          the snapshot, the error of this step: a:ValueError:attempts
    hooks, cancelled       the values for which timeout() was called, and whose calls were cancelled
    available              room in the queue; a caller that waits for it has been told
    timers, waits, now     timers, waits of the mailbox thread, the clock
    times, deadlines       of the timeouts captured: waiting/in flight/between, and the deadline
    limit_waits            how many calls have waited for the limits, and how many seconds
    timed                  the calls, and the waits before them, whose time was measured

A captured error reads "!a:ValueError".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pipeline.streaming import AsyncOperatorError, CapturedError, RetryAfter, StreamRecord, Watermark

from ....kit.scenarios import play
from .harness import Element, HandBatchFunction, HandFunction, Harness, Switch, fallback, on_one_clock

ERRORS: dict[str, Callable[[], Exception]] = {
    "busy": lambda: ValueError("busy"),
    "gone": lambda: KeyError("gone"),
    "now": lambda: RetryAfter(0),
    "pause1": lambda: RetryAfter(1.0),
    "pause2": lambda: RetryAfter(2.0),
    "pause4": lambda: RetryAfter(4.0),
}

Options = dict[str, Any]
Rows = dict[str, tuple[Options, str]]

EITHER: Options = {"output_mode": "either"}
UNORDERED: Options = {"output_mode": "unordered"}
ORDERED: Options = {"output_mode": "ordered"}
LATE: Options = {"function": fallback}
"""A value that is late gives "no_a"."""
BATCH: Options = {"function": HandBatchFunction}
LATE_BATCH: Options = {"function": lambda: fallback(HandBatchFunction)}


def scenarios(rows: Rows) -> pytest.MarkDecorator:
    """The parameters `options` and `script` of a test: one row after another, in the modes that it names."""
    cases = []
    for name, (options, script) in rows.items():
        mode = options.get("output_mode")
        for each in ("ordered", "unordered") if mode == "either" else (mode,):
            given = options if each is None else options | {"output_mode": each}
            cases.append(pytest.param(given, script, id=f"{name}, {each}" if mode == "either" else name))
    return pytest.mark.parametrize(("options", "script"), cases)


def check(options: Options, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Play a row."""
    stage = OperatorStage(**options)
    on_one_clock(monkeypatch, stage.harness)
    with stage.harness:
        play(stage, script)
        stage.assert_nothing_is_left()


class OperatorStage:
    def __init__(
        self, function: Callable[[], Any] = HandFunction, idle: str = "", state: str = "", downstream: bool = False,
        **options: Any,
    ) -> None:  # fmt: skip
        self._idle = [step for step in idle.split("|") if step]
        self._waits = 0
        self._raised: list[BaseException] = []
        self._room: list[Any] = []  # futures of a full queue
        self._switch = Switch()
        if idle:
            options["idle"] = self._wait
        if downstream:
            options["output_availability"] = self._switch
        self.harness = Harness(function(), state=map(element, state.split()), **options)

    # --- what happens

    def play(self, verb: str, *words: str) -> None:
        self._assert_no_error()
        with self._errors_kept():
            if verb == "mailed":
                self._answer(*words)
                return
            if verb == "clock":
                self.harness.settle()
                self.harness.clock.advance(int(words[0]))
                return
            if verb == "one":
                assert self.harness.executor.try_yield()
                return
            if verb.startswith("+"):
                self.harness.advance(int(verb))
            elif (act := getattr(self, f"_{verb}", None)) is not None:
                act(*words)
            else:
                self._answer(verb, *words)
            self.harness.run_mail()

    def _take(self, *words: str) -> None:
        for each in map(element, words):
            if isinstance(each, Watermark):
                self.harness.operator.process_watermark(each)
            else:
                self.harness.operator.process_element(each)

    def _feed(self, *words: str) -> None:
        for word in words:
            if self.harness.operator.is_available():
                self._take(word)

    def _mail(self) -> None:
        """All steps of this kind run the mail."""

    def _end(self) -> None:
        self.harness.operator.end_input()

    def _close(self) -> None:
        self.harness.settle()
        self.harness.operator.close()

    def _quiesce(self) -> None:
        self.harness.mailbox.quiesce()

    def _shut(self) -> None:
        self._switch.turn_off()

    def _open(self) -> None:
        self._switch.turn_on()

    def _late(self, word: str) -> None:
        [*_, call] = [call for call in self.harness.function.calls if call.value == self._value(word)]
        call.complete("late")
        self.harness.settle()

    def _answer(self, verb: str, word: str, *words: str) -> None:
        value = self._value(word)
        if verb == "none":
            self.harness.call(value).give(None)
        elif verb != "ok":
            self.harness.call(value).fail(ERRORS[verb]())
        elif isinstance(value, list):
            self.harness.call(value).give(list(map(entry, words)))
        else:
            self.harness.call(value).complete(*words)
        self.harness.settle()

    def _value(self, word: str) -> Any:
        return word.split("+") if isinstance(self.harness.function, HandBatchFunction) else word

    def _wait(self) -> None:
        self._waits += 1
        self.harness.settle()
        assert self._idle, "the mailbox thread waits, and nothing happens"
        self.play(*self._idle.pop(0).split())

    @contextmanager
    def _errors_kept(self) -> Iterator[None]:
        try:
            yield
        except AssertionError:
            raise
        except Exception as error:
            self._raised.append(error)

    def _assert_no_error(self) -> None:
        if self._raised:
            raise self._raised[0]

    def assert_nothing_is_left(self) -> None:
        self._assert_no_error()
        assert not self._idle, "the mailbox thread has not waited as often"

    # --- what is seen

    def look(self, what: str) -> Iterable[object]:
        harness = self.harness
        match what:
            case "calls":
                return map(name, harness.called())
            case "made":
                return [len(harness.called())]
            case "sent":
                return [harness.operator.metrics.calls]
            case "out":
                return [name(each, is_stamped=False) for each in harness.output]
            case "stamped":
                return map(name, harness.output)
            case "state":
                return map(name, harness.operator.snapshot_state())
            case "raised":
                errors, self._raised = self._raised, []
                return map(name, errors)
            case "hooks":
                return harness.function.timeouts
            case "available":
                return [self._is_available()]
            case "timers":
                return [harness.clock.pending_timers]
            case "now":
                return [harness.clock.current_processing_time()]
            case "waits":
                return [self._waits]
            case "cancelled":
                harness.settle()
                return [name(call.value) for call in harness.function.calls if call.is_cancelled()]
            case "times":
                each = [captured.error.times for captured in self._captured()]
                return [f"{times.waiting_ms:g}/{times.under_way_ms:g}/{times.between_ms:g}" for times in each]
            case "deadlines":
                return [captured.error.deadline_ms for captured in self._captured()]
            case "limit_waits":
                waits = harness.operator.metrics.limit_wait
                return [waits.count, *([round(waits.sum_s, 6)] if waits.count else [])]
            case "timed":
                return [harness.operator.metrics.call_time.count, harness.operator.metrics.queue_wait.count]
            case "opened" | "closed":
                return [getattr(harness.function, what)]
        return [getattr(harness.operator.metrics, what)]

    def _captured(self) -> list[Any]:
        return [value for value in self.harness.values() if isinstance(value, CapturedError)]

    def _is_available(self) -> bool:
        operator = self.harness.operator
        if operator.is_available():
            assert all(future.done() for future in self._room)
            return True
        future = operator.available_future()
        assert future is not None
        assert not future.done()
        self._room.append(future)
        return False


def element(word: str) -> Element:
    if word.startswith("~"):
        return Watermark(int(word[1:]))
    value, _, at = word.partition("@")
    return StreamRecord(value, int(at) if at else None)


def entry(word: str) -> Any:
    """A batch's answer for one value."""
    if word.startswith("!"):
        return ERRORS[word[1:]]()
    return [] if word == "-" else word.split(",")


def name(each: Any, *, is_stamped: bool = True) -> str:
    match each:
        case StreamRecord():
            at = "" if each.timestamp_ms is None or not is_stamped else f"@{each.timestamp_ms}"
            return f"{name(each.value)}{at}"
        case Watermark():
            return f"~{each.timestamp_ms}"
        case CapturedError():
            return f"!{each.input}:{type(each.error).__name__}"
        case AsyncOperatorError():
            return f"{each.value}:{type(each.__cause__).__name__}:{each.attempts}"
        case BaseException():
            return type(each).__name__
        case list():
            return "+".join(map(str, each))
    return str(each)
