"""The operator under random events: whatever ends in whatever order, nothing is lost, doubled or out of its place.

Every input has a timestamp of its own, and what is emitted for it has the same one: so each result tells whose it is.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher.aio import RateLimit
from dispatcher.mailbox import SystemProcessingTimeService
from pipeline.streaming import (
    AsyncOptions,
    AsyncTimeoutError,
    CapturedError,
    RetryAfter,
    RetryStrategy,
    StreamRecord,
    Watermark,
)

from ....kit import TIMEOUT_S, tries
from .harness import Element, HandBatchFunction, HandCall, HandFunction, Harness, Switch, wait_in_chunks

KEYS = 3
"""How many keys there are where calls are shared."""


SHARED = {"dedupe_by": lambda value: value % KEYS}
OPTIONS = st.builds(
    lambda options, sharing: {**options, **sharing},
    st.fixed_dictionaries(
        {
            "capacity": st.none() | st.integers(1, 6),
            "timeout_ms": st.sampled_from([20, 100, 100_000]),
            "retry": st.sampled_from(
                [
                    None,
                    RetryStrategy.fixed_delay(2, 15, retry_on_exception=ValueError),
                    RetryStrategy.fixed_delay(1, 15, retry_on_exception=ValueError, retry_on_result=operator.not_),
                    RetryStrategy.exponential_backoff(3, 5, 40, 2.0, retry_on_exception=ValueError),
                ]
            ),
            "deadline_ms": st.sampled_from([None, None, 30, 150]),
            "concurrency": st.sampled_from([None, None, 1, 2]),
            "read_ahead": st.sampled_from([0, 0, 1, 3]),
            "rate_limit": st.sampled_from([None, None, RateLimit(200, burst=1)]),
        }
    ),
    st.sampled_from([{}, {}, SHARED, {**SHARED, "remember": 2}]),
)
BATCHES = st.fixed_dictionaries({"max_batch_size": st.integers(1, 4), "linger_ms": st.sampled_from([0, 10])})
ANSWERS = st.sampled_from(["one", "one", "one", "two", "none", "busy", "broken", "pause"])


class OperatorMachine(RuleBasedStateMachine):
    """Random inputs, answers, mail, time, outputs that are unavailable, and restarts from a snapshot."""

    mode: str

    def __init__(self) -> None:
        super().__init__()
        self.harness: Harness | None = None
        self.ids = itertools.count(1)
        self.taken: list[Element] = []  # inputs, in their order
        self.output: list[Element] = []  # of all operators so far
        self.functions: list[HandFunction] = []  # of all operators so far
        self.no_results: set[int] = set()  # values for which an answer without results was given
        self.switch = Switch()
        self.data: st.DataObject | None = None

    # --- the operator

    @initialize(options=OPTIONS, batches=st.none() | BATCHES)
    def start(self, options: dict[str, Any], batches: dict[str, Any] | None) -> None:
        self.options = {**options, **(batches or {})}
        self.function_class = HandBatchFunction if batches is not None else HandFunction
        self.make([])

    def make(self, state: list[Element]) -> None:
        self.started_with = len([element for element in state if isinstance(element, StreamRecord)])
        self.taken_before = self.records_taken()
        self.functions.append(self.function_class())
        self.harness = Harness(
            self.functions[-1],
            output_mode=self.mode,
            on_error="capture",
            output=self.output.append,
            output_availability=self.switch,
            idle=self.idle,
            state=state,
            **self.options,
        )
        self.harness.open()

    def teardown(self) -> None:
        if self.harness is None:
            return
        try:
            if self.switch.future is not None:
                self.switch.turn_on()
            self.data = None
            self.harness.operator.end_input()
            self.check_the_end()
        finally:
            self.harness.operator.close()

    def records_taken(self) -> int:
        return sum(isinstance(element, StreamRecord) for element in self.taken)

    def now(self) -> Harness:
        assert self.harness is not None
        return self.harness

    # --- what happens

    def idle(self) -> None:
        """The operator waits for mail: something has to happen, or it waits for ever."""
        harness = self.now()
        harness.settle()
        if harness.mailbox.size():
            return
        if self.switch.future is not None:
            self.switch.turn_on()
        elif self.open_calls():
            self.give_an_answer()
        else:
            assert harness.clock.advance_to_next_timer(), "nothing in flight, no timer, and yet the operator waits"

    def open_calls(self) -> list[HandCall]:
        harness = self.now()
        harness.settle()
        return [call for call in harness.function.calls if call.is_open()]

    def give_an_answer(self) -> None:
        calls = self.open_calls()
        call = self.draw(st.sampled_from(calls), calls[-1])
        if isinstance(call.value, list):
            entries = [self.outcome(value) for value in call.value]
            call.complete(*entries)
        else:
            outcome = self.outcome(call.value)
            if isinstance(outcome, Exception):
                call.fail(outcome)
            else:
                call.complete(*outcome)
        self.now().settle()

    def outcome(self, value: int) -> list[Any] | Exception:
        kind = self.draw(ANSWERS, "one")
        note(f"{value}: {kind}")
        if kind == "busy":
            return ValueError(value)
        if kind == "broken":
            return KeyError(value)
        if kind == "pause":
            return RetryAfter(0.007)
        if kind == "none":
            self.no_results.add(value)
            return []
        return [(value, 0)] if kind == "one" else [(value, 0), (value, 1)]

    def draw(self, strategy: st.SearchStrategy[Any], otherwise: Any) -> Any:
        return otherwise if self.data is None else self.data.draw(strategy)

    @rule(data=st.data())
    def process(self, data: st.DataObject) -> None:
        self.data = data
        record = StreamRecord(number := next(self.ids), number)
        self.taken.append(record)
        self.now().operator.process_element(record)

    @rule(data=st.data())
    def process_watermark(self, data: st.DataObject) -> None:
        self.data = data
        watermark = Watermark(next(self.ids))
        self.taken.append(watermark)
        self.now().operator.process_watermark(watermark)

    @precondition(lambda self: self.harness is not None and self.open_calls())
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        self.data = data
        self.give_an_answer()

    @rule()
    def run_one_mail(self) -> None:
        self.now().executor.try_yield()

    @rule()
    def run_all_mail(self) -> None:
        self.now().run_mail()

    @rule(ms=st.integers(1, 40))
    def advance(self, ms: int) -> None:
        self.now().settle()
        self.now().clock.advance(ms)

    @rule()
    def turn_the_output_on_or_off(self) -> None:
        if self.switch.future is None:
            self.switch.turn_off()
        else:
            self.switch.turn_on()

    @rule(data=st.data())
    def restart_from_a_snapshot(self, data: st.DataObject) -> None:
        self.data = data
        harness = self.now()
        state = harness.operator.snapshot_state()
        harness.operator.close()
        self.make(state)

    # --- what always holds

    @invariant()
    def the_snapshot_has_exactly_what_is_not_emitted(self) -> None:
        if self.harness is None:
            return
        state = self.harness.operator.snapshot_state()
        ids = [stamp(element) for element in state]
        emitted = {stamp(element) for element in self.output}
        assert len(set(ids)) == len(ids)
        assert not emitted & set(ids)
        missing = {stamp(element) for element in self.taken} - emitted - set(ids)
        assert all(self.may_have_no_results(number) for number in missing)
        if self.mode == "ordered":
            assert ids == sorted(ids)

    @invariant()
    def the_calls_under_way_keep_their_bounds(self) -> None:
        if self.harness is None:
            return
        bounds = [self.options[name] for name in ("capacity", "concurrency") if self.options[name] is not None]
        assert len(self.open_calls()) <= min(bounds, default=100)

    def may_have_no_results(self, number: int) -> bool:
        if "dedupe_by" in self.options:
            return any(value % KEYS == number % KEYS for value in self.no_results)
        return number in self.no_results

    def check_the_end(self) -> None:
        harness = self.now()
        self.the_snapshot_has_exactly_what_is_not_emitted()
        assert harness.operator.snapshot_state() == []
        self.check_each_input_came_out_once()
        self.check_places()
        self.check_counts()
        self.check_that_no_record_is_late_before_its_call()

    def check_each_input_came_out_once(self) -> None:
        for number, group in itertools.groupby(self.output, stamp):
            elements = list(group)
            first = elements[0]
            if isinstance(first, Watermark):
                assert len(elements) == 1
            elif isinstance(first.value, CapturedError):
                assert len(elements) == 1
                assert first.value.input == number
            else:
                values = [element.value for element in elements if isinstance(element, StreamRecord)]
                source = values[0][0]
                assert source == number or ("dedupe_by" in self.options and source % KEYS == number % KEYS)
                assert values == [(source, index) for index in range(len(values))]
        ids = [number for number, _ in itertools.groupby(map(stamp, self.output))]
        assert len(set(ids)) == len(ids), "an input came out twice"

    def check_places(self) -> None:
        emitted = [number for number, _ in itertools.groupby(map(stamp, self.output))]
        watermarks = [element.timestamp_ms for element in self.taken if isinstance(element, Watermark)]
        if self.mode == "ordered":
            assert emitted == sorted(emitted)
            return
        # Inputs count up, so it is enough that all before a watermark are smaller, and all after it greater.
        for watermark in watermarks:
            place = emitted.index(watermark)
            assert all(number < watermark for number in emitted[:place])
            assert all(number > watermark for number in emitted[place + 1 :])

    def check_counts(self) -> None:
        metrics = self.now().operator.metrics
        records = self.started_with + self.records_taken() - self.taken_before
        assert metrics.in_flight == 0
        if "max_batch_size" not in self.options:  # a batch keeps the values that are late before it is sent
            assert metrics.calls >= len(self.functions[-1].calls)
        assert metrics.completed + metrics.failed == records
        assert metrics.captured == metrics.failed

    def check_that_no_record_is_late_before_its_call(self) -> None:
        """The timeout begins with the first call; only the deadline runs before that."""
        made = [call.value for function in self.functions for call in function.calls]
        called = {value for each in made for value in (each if isinstance(each, list) else [each])}
        keys = {value % KEYS for value in called}
        for element in self.output:
            captured = element.value if isinstance(element, StreamRecord) else None
            if isinstance(captured, CapturedError) and isinstance(captured.error, AsyncTimeoutError):
                is_shared = "dedupe_by" in self.options and captured.input % KEYS in keys
                assert captured.error.deadline_ms is not None or captured.input in called or is_shared


def stamp(element: Element) -> int:
    assert element.timestamp_ms is not None
    return element.timestamp_ms


class OrderedMachine(OperatorMachine):
    mode = "ordered"


class UnorderedMachine(OperatorMachine):
    mode = "unordered"


TestOrderedOperator = OrderedMachine.TestCase
TestUnorderedOperator = UnorderedMachine.TestCase
TestOrderedOperator.settings = TestUnorderedOperator.settings = settings(
    max_examples=tries(25), stateful_step_count=40, deadline=None
)


# --- with real threads ---


@settings(max_examples=tries(20))
@given(
    latencies=st.lists(st.integers(0, 6), max_size=60),
    chunk_size=st.integers(1, 9),
    max_chunk=st.sampled_from([1, 3, 1000]),
    capacity=st.integers(1, 12),
    mode=st.sampled_from(["ordered", "unordered"]),
)
def test_results_of_any_latency_come_out_once_and_in_their_place(
    latencies: list[int], chunk_size: int, max_chunk: int, capacity: int, mode: Any
) -> None:
    async def call(index: int) -> list[int]:
        for _ in range(latencies[index]):
            await asyncio.sleep(0)
        if latencies[index] == 3:
            raise ValueError(index)
        return [index] * (latencies[index] % 3)

    options = AsyncOptions(timeout_ms=60_000, capacity=capacity, output_mode=mode, on_error="capture")
    inputs = range(len(latencies))
    chunks = [inputs[start : start + chunk_size] for start in range(0, len(inputs), chunk_size)]

    lists: list[list[Any]] = list(wait_in_chunks(chunks, call, options, max_chunk=max_chunk))

    indexes: list[Any] = [
        each.input if isinstance(each, CapturedError) else each for results in lists for each in results
    ]
    expected = [i for i, latency in enumerate(latencies) for _ in range(1 if latency == 3 else latency % 3)]
    assert (indexes if mode == "ordered" else sorted(indexes)) == expected
    assert all(1 <= len(each) <= max_chunk for each in lists)


@pytest.fixture(scope="module")
def timers() -> Iterator[SystemProcessingTimeService]:
    service = SystemProcessingTimeService()
    yield service
    assert service.shutdown(TIMEOUT_S)


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("ordered", {}),
        ("unordered", {"retry": RetryStrategy.fixed_delay(2, 1, retry_on_exception=ValueError)}),
        ("ordered", {"concurrency": 7, "retry": RetryStrategy.fixed_delay(2, 1, retry_on_exception=ValueError)}),
        ("unordered", {"dedupe_by": lambda value: value // 3}),
        ("ordered", {"rate_limit": RateLimit(20_000)}),
    ],
    ids=["plain", "retry", "concurrency", "dedupe", "rate limit"],
)
def test_answers_and_timeouts_race_for_real(
    timers: SystemProcessingTimeService, mode: str, options: dict[str, Any]
) -> None:
    """Half of the calls take about as long as they may; some fail, some ask for a pause."""

    async def call(value: int) -> list[int]:
        await asyncio.sleep(chance.choice([0, 0, 0.003, 0.004]))
        kind = chance.randrange(20)
        if kind == 0:
            raise RetryAfter(0.001)
        if kind < 4:
            raise ValueError(value)
        return [value]

    chance = Random(7)
    harness = Harness(call, output_mode=mode, timers=timers, timeout_ms=4, capacity=40, on_error="capture", **options)
    with harness:
        for value in range(400):
            harness.process(value, at=value)
            if value % 50 == 49:
                harness.watermark(value)
        harness.operator.end_input()
        metrics = harness.operator.metrics

        stamps = [stamp(element) for element in harness.output if isinstance(element, StreamRecord)]
        assert (stamps if mode == "ordered" else sorted(stamps)) == list(range(400))
        for place, element in enumerate(harness.output):
            if isinstance(element, Watermark):
                assert place == element.timestamp_ms + 1 + element.timestamp_ms // 50
        assert metrics.completed + metrics.failed == 400
        assert metrics.failed == metrics.captured
        assert metrics.in_flight == 0
