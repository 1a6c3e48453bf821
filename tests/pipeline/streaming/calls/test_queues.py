"""Element queues: the results' future, both orders of emission, and both queues against a model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline.streaming import (
    OrderedStreamElementQueue,
    ResultFuture,
    StreamRecord,
    UnorderedStreamElementQueue,
    Watermark,
)

from ....kit import TIMEOUT_S, in_threads, tries
from ....kit.switching import switching_often
from .harness import Element

Queue = OrderedStreamElementQueue[Any, Any] | UnorderedStreamElementQueue[Any, Any]
BOTH = pytest.mark.parametrize("queue_class", [OrderedStreamElementQueue, UnorderedStreamElementQueue])


def put(queue: Queue, *elements: Element) -> list[ResultFuture[Any]]:
    futures = []
    for element in elements:
        future = queue.try_put(element)
        assert future is not None
        futures.append(future)
    return futures


def emit_all(queue: Queue) -> list[Element]:
    emitted: list[Element] = []
    while queue.has_completed_elements():
        queue.emit_completed_element(emitted.append)
    return emitted


# --- ResultFuture ---


def test_a_future_copies_its_results_and_refuses_an_outcome_that_is_none() -> None:
    """With None as its error, a failed record would look like one without results."""

    def lost() -> Iterator[str]:
        yield "a"
        raise OSError("connection lost")

    future, mine = ResultFuture[str](), ["a"]
    with pytest.raises(OSError, match="connection lost"):
        future.complete(lost())
    with pytest.raises(TypeError, match="got None"):
        future.complete_exceptionally(None)  # type: ignore[arg-type]
    assert repr(future) == "<ResultFuture pending>"

    assert future.complete(mine)
    mine.append("b")

    assert future.results == ("a",)


# --- first completion wins, from any thread ---


class RecordingFuture(ResultFuture[str]):
    """Keeps what the hook saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, tuple[str, ...], BaseException | None]] = []

    def _on_complete(self) -> None:
        self.seen.append((self.is_done(), self.results, self.error))


@pytest.mark.parametrize("threads", [2, 8])
def test_of_completions_in_many_threads_exactly_one_wins_and_the_hook_sees_it(threads: int) -> None:
    def complete(index: int) -> None:
        won[index] = future.complete_exceptionally(errors[index]) if index % 2 else future.complete([str(index)])

    for _ in range(20):
        future, won = RecordingFuture(), dict[int, bool]()
        errors = [ValueError(str(index)) for index in range(threads)]
        with switching_often():
            in_threads(*(partial(complete, index) for index in range(threads)))

        (winner,) = (index for index, has_won in won.items() if has_won)
        outcome = ((), errors[winner]) if winner % 2 else ((str(winner),), None)
        assert (future.results, future.error) == outcome
        assert future.seen == [(True, *outcome)]


class PausingFuture(ResultFuture[str]):
    """Holds the thread that got the claim until it is let go: it widens the window after the claim."""

    __slots__ = ("go_on", "is_claimed")

    def __init__(self) -> None:
        super().__init__()
        self.is_claimed = threading.Event()
        self.go_on = threading.Event()

    def _try_claim(self) -> bool:
        if not super()._try_claim():
            return False
        self.is_claimed.set()
        assert self.go_on.wait(TIMEOUT_S)
        return True


def test_a_completion_between_the_claim_and_the_outcome_of_another_is_ignored() -> None:
    future = PausingFuture()
    winner = threading.Thread(target=future.complete, args=(["first"],))
    winner.start()
    assert future.is_claimed.wait(TIMEOUT_S)

    assert not future.complete(["second"])
    assert not future.complete_exceptionally(ValueError("third"))
    assert not future.is_done()

    future.go_on.set()
    winner.join(TIMEOUT_S)
    assert future.is_done()
    assert (future.results, future.error) == (("first",), None)


# --- what both queues do ---


@BOTH
def test_an_output_may_use_the_queue_and_one_that_fails_does_not_make_it_emit_again(queue_class: type[Queue]) -> None:
    queue = queue_class(1)
    [future] = put(queue, StreamRecord("a", 1))
    future.complete(["x"])
    emitted: list[Element] = []

    def put_the_next_and_fail(element: Element) -> None:
        emitted.append(element)
        if len(emitted) == 1:
            put(queue, StreamRecord("b", 2))[0].complete(["y"])
            queue.emit_completed_element(emitted.append)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        queue.emit_completed_element(put_the_next_and_fail)

    assert emitted == [StreamRecord("x", 1), StreamRecord("y", 2)]
    assert queue.is_empty()


# --- where they differ ---


def test_drained_segments_do_not_pile_up() -> None:
    queue: UnorderedStreamElementQueue[str, str] = UnorderedStreamElementQueue(2)
    for timestamp_ms in range(100):
        future, _ = put(queue, StreamRecord("a", timestamp_ms), Watermark(timestamp_ms))
        future.complete(["x"])
        assert emit_all(queue) == [StreamRecord("x", timestamp_ms), Watermark(timestamp_ms)]

    assert len(queue._segments) == 1


# --- both queues against a model ---


@dataclass
class Put:
    """One element of the model: what was put, and what its first completion was."""

    element: Element
    future: ResultFuture[Any]
    expected: list[Element] = field(default_factory=list)
    completed_as: int | None = None  # the how manieth completion it was; None: still open

    def is_watermark(self) -> bool:
        return isinstance(self.element, Watermark)


class QueueMachine(RuleBasedStateMachine):
    """Random puts, completions and emissions; the model is the plain list of what was put and not emitted.

    Subclasses say which queue it is, which element comes next and in which order `values()` are.
    """

    queue_class: type[Queue]

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Put] = []
        self.accepted: list[Put] = []
        self.emitted: list[Element] = []
        self.expected: list[Element] = []
        self.departed: list[Put] = []
        self.completions = 0

    def next_to_emit(self) -> Put | None:
        raise NotImplementedError

    def values_in_order(self) -> list[Element]:
        raise NotImplementedError

    @initialize(capacity=st.integers(1, 8))
    def make(self, capacity: int) -> None:
        self.capacity = capacity
        self.queue = self.queue_class(capacity)

    def put(self, element: Element) -> None:
        future = self.queue.try_put(element)
        if len(self.waiting) == self.capacity:
            assert future is None
            return
        assert future is not None
        put = Put(element, future)
        if put.is_watermark():
            put.expected = [element]
            self.completions += 1
            put.completed_as = self.completions
        self.waiting.append(put)
        self.accepted.append(put)

    @rule(timestamp_ms=st.none() | st.integers(0, 100))
    def put_record(self, timestamp_ms: int | None) -> None:
        self.put(StreamRecord(len(self.accepted), timestamp_ms))

    @rule(timestamp_ms=st.integers(0, 100))
    def put_watermark(self, timestamp_ms: int) -> None:
        self.put(Watermark(timestamp_ms))

    def finish(self, put: Put, results: int | None) -> None:
        """Complete with so many results, each unlike any other there is; None completes exceptionally."""
        answers = [(put.element, self.completions, index) for index in range(results or 0)]
        if results is None:
            won = put.future.complete_exceptionally(ValueError("model"))
        else:
            won = put.future.complete(answers)

        assert won == (put.completed_as is None)
        if won:
            assert isinstance(put.element, StreamRecord)
            self.completions += 1
            put.completed_as = self.completions
            put.expected = [StreamRecord(answer, put.element.timestamp_ms) for answer in answers]

    @precondition(lambda self: any(put.completed_as is None for put in self.waiting))
    @rule(data=st.data(), results=st.none() | st.integers(0, 3))
    def complete(self, data: st.DataObject, results: int | None) -> None:
        self.finish(data.draw(st.sampled_from([put for put in self.waiting if put.completed_as is None])), results)

    @precondition(lambda self: any(put.completed_as is not None for put in self.accepted))
    @rule(data=st.data(), results=st.none() | st.integers(0, 3))
    def complete_again(self, data: st.DataObject, results: int | None) -> None:
        """A second completion, of an element still queued or long gone, and any completion of a watermark."""
        done = [put for put in self.accepted if put.completed_as is not None]
        self.finish(data.draw(st.sampled_from(done)), results)

    @rule()
    def emit(self) -> None:
        put = self.next_to_emit()
        self.queue.emit_completed_element(self.emitted.append)
        if put is not None:
            self.waiting = [other for other in self.waiting if other is not put]
            self.departed.append(put)
            self.expected += put.expected

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.emitted == self.expected
        assert self.queue.size() == len(self.waiting)
        assert self.queue.is_empty() == (not self.waiting)
        assert self.queue.has_completed_elements() == (self.next_to_emit() is not None)
        assert self.queue.values() == self.values_in_order()

    def teardown(self) -> None:
        """Complete and emit the rest: then each accepted element has left exactly once."""
        for put in reversed([put for put in self.waiting if put.completed_as is None]):
            self.finish(put, 1)
        while self.waiting:
            assert self.next_to_emit() is not None
            self.emit()
        self.agrees_with_the_model()
        assert sorted(map(id, self.departed)) == sorted(map(id, self.accepted))
        self.check_the_order_of_the_whole_run()

    def check_the_order_of_the_whole_run(self) -> None:
        raise NotImplementedError


class OrderedMachine(QueueMachine):
    queue_class = OrderedStreamElementQueue

    def next_to_emit(self) -> Put | None:
        return self.waiting[0] if self.waiting and self.waiting[0].completed_as is not None else None

    def values_in_order(self) -> list[Element]:
        return [put.element for put in self.waiting]

    def check_the_order_of_the_whole_run(self) -> None:
        assert self.emitted == [element for put in self.accepted for element in put.expected]


def between_watermarks(puts: list[Put]) -> list[list[Put]]:
    """Cut at the watermarks: records, watermark, records, ..., watermark, records. A group may be empty."""
    groups: list[list[Put]] = [[]]
    for put in puts:
        if put.is_watermark():
            groups += [[put], []]
        else:
            groups[-1].append(put)
    return groups


class UnorderedMachine(QueueMachine):
    queue_class = UnorderedStreamElementQueue

    def next_to_emit(self) -> Put | None:
        first = next((group for group in between_watermarks(self.waiting) if group), [])
        return min(
            (put for put in first if put.completed_as is not None),
            key=lambda put: put.completed_as or 0,
            default=None,
        )

    def values_in_order(self) -> list[Element]:
        values: list[Element] = []
        for group in between_watermarks(self.waiting):
            done = [put for put in group if put.completed_as is not None]
            values += [put.element for put in sorted(done, key=lambda put: put.completed_as or 0)]
            values += [put.element for put in group if put.completed_as is None]
        return values

    def check_the_order_of_the_whole_run(self) -> None:
        """Between the same two watermarks, what went in came out."""
        came_out = between_watermarks(self.departed)
        went_in = between_watermarks(self.accepted)
        assert [set(map(id, group)) for group in came_out] == [set(map(id, group)) for group in went_in]


TestOrderedQueueAgainstModel = OrderedMachine.TestCase
TestUnorderedQueueAgainstModel = UnorderedMachine.TestCase
TestOrderedQueueAgainstModel.settings = TestUnorderedQueueAgainstModel.settings = settings(
    max_examples=tries(25), stateful_step_count=30, deadline=None
)
