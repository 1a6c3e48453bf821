"""Inputs give elements one by one, say what is left, and go on from a checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.streaming import (
    CheckpointError,
    InputClosedError,
    IterableInput,
    QueueInput,
    StreamRecord,
    StreamTaskInput,
    Watermark,
)

from ....kit import TIMEOUT_S, in_threads
from ....kit.switching import switching_often
from .task_fakes import Element, InputStatus, values, wait_for

MORE, NOTHING, END = InputStatus.MORE_AVAILABLE, InputStatus.NOTHING_AVAILABLE, InputStatus.END_OF_INPUT


def read_all(source: StreamTaskInput) -> list[Element]:
    elements: list[Element] = []
    while source.emit_next(elements.append) is MORE:
        pass
    return elements


def test_an_iterable_gives_its_values_as_records_and_keeps_elements() -> None:
    source = IterableInput([1, StreamRecord(2, 20), Watermark(20)])

    assert read_all(source) == [StreamRecord(1), StreamRecord(2, 20), Watermark(20)]
    assert source.available().done()


@given(st.lists(st.integers()), st.integers(min_value=0, max_value=50))
def test_an_iterable_restored_at_any_position_gives_the_rest(numbers: list[int], position: int) -> None:
    position = min(position, len(numbers))
    first, read = IterableInput(numbers), []
    for _ in range(position):
        first.emit_next(read.append)

    second = IterableInput(numbers)
    second.initialize_state(first.snapshot_state())

    assert values(read + read_all(second)) == numbers


@pytest.mark.parametrize(
    ("source", "state", "message"),
    [
        (IterableInput([1, 2]), 3, "has 2 elements, but 3 had been read"),
        (IterableInput([1]), "line 7", "another kind of input"),
        (QueueInput[int](), "line 7", "another kind of input"),
    ],
)
def test_a_state_that_does_not_fit_the_input_is_refused(source: StreamTaskInput, state: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        source.initialize_state(state)


def test_closing_an_iterable_input_closes_its_generator() -> None:
    closed = []

    def lines() -> Iterator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            closed.append(True)

    source = IterableInput(lines())
    source.emit_next(lambda _: None)

    source.close()

    assert closed == [True]


@pytest.mark.parametrize("happens", ["put", "end", "put and end"])
def test_a_queue_has_nothing_until_something_is_put_or_it_has_ended(happens: str) -> None:
    queue = QueueInput[int]()
    assert queue.emit_next(lambda _: None) is NOTHING
    available = queue.available()
    assert not available.done()
    if "put" in happens:
        queue.put(1)
    if "end" in happens:
        queue.end()

    elements: list[Element] = []
    assert available.done()
    assert queue.available().done()
    assert queue.emit_next(elements.append) is (MORE if "put" in happens else END)
    assert queue.emit_next(elements.append) is (END if "end" in happens else NOTHING)
    assert values(elements) == ([1] if "put" in happens else [])


def test_putting_after_the_end_or_the_close_is_refused() -> None:
    ended, closed = QueueInput[int](), QueueInput[int]()
    ended.end()
    closed.close()

    with pytest.raises(InputClosedError, match="was ended"):
        ended.put(1)
    with pytest.raises(InputClosedError, match="is over"):
        closed.put(1)


def test_a_put_waits_while_the_queue_is_full() -> None:
    queue = QueueInput[int](capacity=2)
    elements: list[Element] = []

    def put() -> None:
        for number in range(50):
            queue.put(number)

    def read() -> None:
        while len(elements) < 100:
            assert len(queue._queue) <= 2
            if queue.emit_next(elements.append) is NOTHING:
                queue.available().result(TIMEOUT_S)

    in_threads(put, put, read)

    assert sorted(values(elements)) == sorted([*range(50)] * 2)


def test_a_put_goes_on_before_the_queue_is_empty() -> None:
    queue = QueueInput[int](capacity=4)
    for number in range(4):
        queue.put(number)
    put = threading.Event()
    producer = threading.Thread(target=lambda: (queue.put(4), put.set()), daemon=True)
    producer.start()
    while not queue._blocked:
        producer.join(0.001)

    for _ in range(2):
        queue.emit_next(lambda _: None)

    wait_for(put, "the put")
    assert values(read_all(queue)) == [2, 3, 4]


def test_what_is_put_in_a_block_and_what_is_noted_there_are_in_the_same_snapshot() -> None:
    queue = QueueInput[int](capacity=1)
    position = 0
    done = threading.Event()

    def put_all() -> None:
        nonlocal position
        for _ in range(200):
            with queue.atomically():  # a block does not wait for room once it is entered
                queue.put(position)
                with queue.atomically():
                    queue.put(position + 1)
                position += 2
        done.set()

    thread = threading.Thread(target=put_all, daemon=True)
    read: list[Element] = []
    try:
        with switching_often():
            thread.start()
            while not done.is_set():
                queued, noted = queue.snapshot_with(lambda: position)
                assert len(read) + len(queued) == noted
                queue.emit_next(read.append)
    finally:
        queue.interrupt(InterruptedError)
        thread.join(TIMEOUT_S)

    assert values(read + read_all(queue)) == list(range(400))


@given(st.lists(st.one_of(st.integers(), st.builds(Watermark, st.integers())), max_size=20), st.integers(0, 20))
def test_a_restored_queue_emits_the_stored_elements_first(elements: list[Any], read: int) -> None:
    queue, before = QueueInput[Any](), []
    for element in elements:
        queue.put(element)
    for _ in range(read):
        queue.emit_next(before.append)

    restored = QueueInput[Any]()
    restored.put("new")
    restored.initialize_state(queue.snapshot_state())

    expected = [e if isinstance(e, Watermark) else StreamRecord(e) for e in elements]
    assert before + read_all(restored) == [*expected, StreamRecord("new")]
