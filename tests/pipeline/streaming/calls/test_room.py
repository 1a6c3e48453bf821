"""How many records an ordered operator takes in if no capacity is given: as its calls need and memory allows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.streaming import OrderedStreamElementQueue, StreamRecord, Watermark
from pipeline.streaming.calls.room import MOST_PER_CALL, GrowingRoom, approximate_bytes

from .harness import HandCall, HandFunction, Harness, make_host
from .stage import Options, Rows, check, scenarios

MS_PER_CALL, MS_PER_SLOW_CALL = 10, 500


def feed(harness: Harness, values: Iterator[Any]) -> None:
    """As a stream task does: elements while there is room."""
    operator = harness.operator
    while operator.is_available() or operator.available_future() is None:
        value = next(values, None)
        if value is None:
            return
        harness.process(value)


def answer_all_but_the_first(harness: Harness) -> None:
    harness.settle()
    for call in [call for call in harness.function.calls[1:] if call.is_open()]:
        call.complete(call.value)
    harness.settle()
    harness.run_mail()


def test_the_queue_grows_while_its_oldest_call_would_idle_the_others() -> None:
    with Harness(capacity=None, concurrency=2) as harness:
        values = itertools.count()
        taken = set()
        for _ in range(2 * MOST_PER_CALL):
            feed(harness, values)
            taken.add(len(harness.operator.snapshot_state()))
            answer_all_but_the_first(harness)

        assert taken == {2, 20, 40, 80, 128}
        assert len(harness.called()) == 2 * MOST_PER_CALL
        harness.answer(0, 0)
        assert harness.values() == list(range(2 * MOST_PER_CALL))


def test_a_queue_that_has_grown_makes_no_more_calls_at_once() -> None:
    """The calls in flight went straight to the host, which takes any number."""
    function = HandFunction()
    host = make_host(function)
    host.start()
    with Harness(host, capacity=None, concurrency=2) as harness:
        values = itertools.count()
        for _ in range(5):
            feed(harness, values)
            function.settle()
            assert sum(call.is_open() for call in function.calls) == 2
            function.calls[-1].complete(1)
            function.settle()
            harness.run_mail()

        assert len(harness.operator.snapshot_state()) == 20
    assert host.stop()


GROWING: Options = {"capacity": None, "concurrency": 2}

SCENARIOS: Rows = {
    "the queue does not grow while all slots are used": (GROWING, "feed a b c -> calls a b ; available False"),
    "the queue does not grow while the output is what it waits for": (
        GROWING | {"downstream": True}, "shut | feed a b | mailed ok a A | ok b B | feed c d -> calls a b",
    ),
    "a given capacity is kept": (
        GROWING | {"capacity": 3},
        "feed a b c d | ok b B | feed d | ok c C | feed d -> calls a b c ; state a b c ; available False",
    ),
    # Without availability, the operator itself waits while its queue is full.
    "an operator that waits for room goes on when the queue has grown": (
        GROWING | {"idle": "mailed ok b B"}, "take a b c -> calls a b c ; out",
    ),
}  # fmt: skip


@scenarios(SCENARIOS)
def test_scenario(options: Options, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(options, script, monkeypatch)


class TimedService(HandFunction):
    """1 call in 100 takes 50 times as long as the others, by the harness's clock."""

    harness: Harness

    def __init__(self) -> None:
        super().__init__()
        self.ends_ms: list[int] = []  # of the calls, in their order

    async def async_invoke(self, value: Any) -> list[Any]:
        took_ms = MS_PER_SLOW_CALL if value % 100 == 37 else MS_PER_CALL
        self.ends_ms.append(self.harness.clock.current_processing_time() + took_ms)
        return await super().async_invoke(value)

    def answer_due(self, now_ms: int) -> None:
        due: list[HandCall] = [
            call for call, end in zip(self.calls, self.ends_ms, strict=True) if end <= now_ms and call.is_open()
        ]
        for call in due:
            call.complete(call.value)


def elapsed_ms(mode: str, count: int, concurrency: int) -> int:
    service = TimedService()
    harness = service.harness = Harness(
        service, capacity=None, concurrency=concurrency, output_mode=mode, timeout_ms=60_000
    )
    with harness:
        values = iter(range(count))
        while len(harness.output) < count:
            feed(harness, values)
            harness.advance(MS_PER_CALL)
            service.answer_due(harness.clock.current_processing_time())
            harness.settle()
            harness.run_mail()
        assert sorted(harness.values()) == list(range(count))
        assert len(service.calls) == count
        return harness.clock.current_processing_time()


def test_ordered_is_as_fast_as_unordered_where_1_call_in_100_takes_50_times_as_long() -> None:
    """It had 0.3 of the rate with room for ten records per slot, and less with one."""
    unordered_ms = elapsed_ms("unordered", 4000, 10)

    assert unordered_ms / elapsed_ms("ordered", 4000, 10) >= 0.85


# --- memory ---


def full_queue(values: list[Any]) -> OrderedStreamElementQueue[Any, Any]:
    queue: OrderedStreamElementQueue[Any, Any] = OrderedStreamElementQueue(len(values))
    for value in values:
        queue.try_put(value if isinstance(value, Watermark) else StreamRecord(value))
    return queue


class Large:
    """As an array: what it holds is outside of Python's own objects."""

    nbytes = 8 << 20


@pytest.mark.parametrize(("record", "result", "taken"), [(Large, int, 7), (int, Large, 15)], ids=["records", "results"])
def test_large_records_or_results_keep_the_queue_small(record: Any, result: Any, taken: int) -> None:
    """About 64 MB are for both."""
    with Harness(capacity=None, concurrency=2) as harness:
        values = iter([record() for _ in range(100)])
        for _ in range(2):
            feed(harness, values)
            harness.settle()
            harness.function.calls[-1].complete(result())
            harness.settle()
            harness.run_mail()
        feed(harness, values)

        assert len(harness.operator.snapshot_state()) == taken


def test_a_queue_that_has_grown_shrinks_for_larger_records_but_never_below_the_least() -> None:
    queue = full_queue([1, 2, 3, 4])
    room = GrowingRoom(queue, calls=4, usual=8, most=8, most_bytes=6000)
    room.adapt(under_way=1)
    assert queue.capacity == 8
    for _ in range(4):
        queue.try_put(StreamRecord(bytes(1_000_000)))

    for _ in range(8):
        room.adapt(under_way=4)

    assert queue.capacity == 4


@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_a_sample_is_from_all_over_the_queue(most: int) -> None:
    sampled = [value for value, _ in full_queue(list(range(10))).sample(most)]

    assert len(sampled) <= most
    assert sampled == list(range(0, 10, {1: 10, 3: 4, 4: 3, 100: 1}[most]))
    assert full_queue([Watermark(1)]).sample(most) == [(None, ())]


@pytest.mark.parametrize(
    "value",
    [
        "x" * 100_000,
        bytes(100_000),
        ("key", ["x" * 50_000, "y" * 50_000]),
        {"text": "x" * 100_000},
        SimpleNamespace(text="x" * 100_000),
        [float(number) for number in range(3000)],
        memoryview(bytes(100_000)),
    ],
    ids=["text", "bytes", "nested", "dict", "object", "long list", "array"],
)
def test_what_a_value_takes_is_measured_with_what_it_refers_to(value: Any) -> None:
    assert 90_000 <= approximate_bytes(value) <= 150_000  # without a GIL, objects are larger


def test_what_refers_to_itself_is_measured() -> None:
    loop: list[Any] = []
    loop.append(loop)

    assert 0 < approximate_bytes(loop) < 1000
