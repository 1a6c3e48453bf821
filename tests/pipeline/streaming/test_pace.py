"""How far calls run ahead of the reader of their results, and when results are sent to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pipeline.streaming import AsyncFunction, AsyncOptions
from pipeline.streaming.pace import ReaderGoneError, ReaderPace
from pipeline.streaming.wait import wait_in_chunks

MOST = 1000


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Reader:
    """Reads what was sent when the test says so."""

    def __init__(self, *, reads: bool = True) -> None:
        self.reads = reads
        self.has_gone = False

    def has_read_all(self) -> bool:
        return self.reads

    def is_gone(self) -> bool:
        return self.has_gone


def pace_of(capacity: int = 100, *, calls: int | None = None, reads: bool = True) -> tuple[ReaderPace, Reader, Clock]:
    reader, clock = Reader(reads=reads), Clock()
    return ReaderPace(calls or capacity, capacity, reader, clock=clock), reader, clock


def send(pace: ReaderPace, *sizes: int) -> None:
    for size in sizes:
        pace.has_sent(size)


def test_at_first_there_is_room_for_the_capacity() -> None:
    pace, _, _ = pace_of(100)

    assert pace.room(begun=0, passed=0, held=0, emitted=0) == 100
    assert pace.room(begun=60, passed=20, held=20, emitted=0) == 40


@pytest.mark.parametrize(("per_taken", "room"), [(1, 1000), (4, 1200)])
def test_room_grows_with_what_the_reader_has_taken(per_taken: int, room: int) -> None:
    """Of 400 results that were sent in two batches, the reader has taken the first: 300."""
    pace = ReaderPace(100, 1000, Reader(), per_taken=per_taken, clock=Clock())
    send(pace, 300)
    pace.rows_due(0, 0.0, MOST)
    send(pace, 100)
    pace.rows_due(0, 0.0, MOST)

    assert pace.room(begun=400, passed=400, held=0, emitted=400) == room - 100


def test_results_that_were_not_taken_leave_no_room() -> None:
    pace, _, _ = pace_of(100)

    assert pace.room(begun=100, passed=100, held=0, emitted=100) == 0


def test_a_batch_was_taken_when_the_next_has_been_read() -> None:
    pace, reader, _ = pace_of(100)
    pace.rows_due(100, 0.0, MOST)

    send(pace, 30)
    assert pace.room(begun=100, passed=100, held=0, emitted=100) == 0
    reader.reads = False
    send(pace, 40)
    assert pace.room(begun=100, passed=100, held=0, emitted=100) == 0
    reader.reads = True
    assert pace.room(begun=100, passed=100, held=0, emitted=100) == 30


def test_batches_sent_before_the_last_was_read_count_as_one() -> None:
    pace, reader, _ = pace_of(100)
    reader.reads = False

    send(pace, 30, 40)
    reader.reads = True

    assert pace.room(begun=100, passed=100, held=0, emitted=100) == 0


def test_rows_without_results_need_not_be_taken() -> None:
    pace, _, _ = pace_of(100)

    assert pace.room(begun=100, passed=100, held=20, emitted=0) == 80


def test_bound_is_the_calls_then_the_capacity_then_the_rows_taken() -> None:
    pace, _, _ = pace_of(100, calls=10)

    send(pace, 9, 0)
    assert pace.room(begun=9, passed=9, held=0, emitted=9) == 10
    send(pace, 1, 0)
    assert pace.room(begun=10, passed=10, held=0, emitted=10) == 100
    send(pace, 990, 0)
    assert pace.room(begun=1000, passed=1000, held=0, emitted=1000) == 1000


def test_results_stay_with_the_operator_while_two_batches_wait() -> None:
    pace, _, _ = pace_of(reads=False)
    send(pace, 1)
    pace.rows_due(19, 60.0, 10)
    assert pace.takes_results()

    pace.rows_due(20, 60.0, 10)

    assert not pace.takes_results()


def test_rows_are_taken_in_by_more_than_a_few() -> None:
    pace, _, _ = pace_of(160)

    assert pace.room(begun=151, passed=151, held=151, emitted=0) == 0
    assert pace.room(begun=150, passed=150, held=150, emitted=0) == 10


def test_no_batch_is_larger_than_all_before_it() -> None:
    pace, _, _ = pace_of()
    sizes = []

    for _ in range(7):
        sizes.append(pace.rows_due(1000, 0.0, MOST))
        pace.has_sent(sizes[-1])

    assert sizes == [1, 1, 2, 4, 8, 16, 32]


def test_nothing_is_sent_before_the_last_batch_was_read() -> None:
    pace, reader, clock = pace_of(reads=False)
    send(pace, 1)
    clock.now_s = 60.0

    assert pace.rows_due(1000, 60.0, MOST) == 0
    assert not pace.is_probe_due()
    reader.reads = True
    assert pace.rows_due(1000, 60.0, MOST) == 1


def test_a_small_batch_waits_for_more_rows_once_many_were_taken() -> None:
    pace, _, _ = pace_of()
    send(pace, 800, 0)

    assert pace.rows_due(99, 0.05, MOST) == 0
    assert pace.rows_due(99, 0.1, MOST) == 99
    assert pace.rows_due(100, 0.0, MOST) == 100
    assert pace.rows_due(5000, 0.0, MOST) == 800


def test_reader_is_asked_whether_it_took_the_last_rows_when_calls_wait_for_that() -> None:
    pace, _, _ = pace_of(100)
    pace.rows_due(1, 0.0, MOST)
    send(pace, 1)
    assert not pace.is_probe_due()
    pace.rows_due(0, 0.0, MOST)

    pace.room(begun=100, passed=100, held=99, emitted=1)

    assert pace.is_probe_due()
    send(pace, 0)
    pace.room(begun=100, passed=100, held=99, emitted=1)
    assert not pace.is_probe_due()


def test_reader_gets_something_now_and_then_while_there_are_no_results() -> None:
    pace, _, clock = pace_of()
    assert not pace.is_probe_due()

    clock.now_s = 0.5

    assert pace.is_probe_due()
    send(pace, 0)
    assert not pace.is_probe_due()


def test_an_unread_batch_is_asked_for_soon_and_then_less_often() -> None:
    pace, _, _ = pace_of(reads=False)
    send(pace, 1)

    waits = [pace.wait_s() for _ in range(20)]

    assert waits[0] < 0.001
    assert waits == sorted(waits)
    assert waits[-1] == 0.02


class Counted(AsyncFunction[int, int]):
    """Counts the calls begun, and how far they ever were ahead of the rows taken."""

    def __init__(self) -> None:
        self.taken = self.begun = self.most_ahead = 0

    async def async_invoke(self, value: int) -> list[int]:
        self.begun += 1
        self.most_ahead = max(self.most_ahead, self.begun - self.taken)
        return [value]


def chunks(count: int, size: int = 1000) -> Iterator[Sequence[int]]:
    for start in range(0, count, size):
        yield range(start, min(count, start + size))


def paced(function: Any, pace: ReaderPace, count: int, **options: Any) -> Iterator[list[Any]]:
    return wait_in_chunks(chunks(count), function, AsyncOptions(timeout_ms=60_000, **options), max_chunk=256, pace=pace)


def sent_by(pace: ReaderPace, results: Iterator[list[Any]], function: Counted) -> Iterator[list[Any]]:
    """The batches that a sender sends which obeys `pace`; a batch has been taken when the next one is asked for."""
    waiting: list[Any] = []
    for found in results:
        waiting += found
        while size := pace.rows_due(len(waiting), 1.0, MOST):
            batch, waiting = waiting[:size], waiting[size:]
            pace.has_sent(size)
            yield batch
            function.taken += size
        if pace.is_probe_due():
            pace.has_sent(0)
    yield waiting


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_all_results_come_and_calls_are_never_further_ahead_than_the_bound(mode: str) -> None:
    function = Counted()
    pace, _, _ = pace_of(50)

    batches = list(sent_by(pace, paced(function, pace, 5_000, capacity=50, output_mode=mode), function))

    assert sorted(value for batch in batches for value in batch) == list(range(5_000))
    # The queue and what is read ahead, results ready, those that wait, and the last batch, which counts as taken later.
    assert function.most_ahead <= 50 + 12 + 2 * 256 + 3 * MOST + 256


def test_a_reader_that_takes_few_rows_pays_for_the_capacity_beyond_them() -> None:
    function = Counted()
    pace, _, _ = pace_of(50)
    results = paced(function, pace, 20_000, capacity=50)
    batches = sent_by(pace, results, function)

    taken = [value for _ in range(4) for value in next(batches)]

    assert taken == list(range(len(taken)))
    assert len(taken) <= 8
    assert function.begun <= len(taken) + 50
    results.close()  # type: ignore[attr-defined]


def test_a_function_without_results_is_called_for_all_rows() -> None:
    called: list[int] = []

    async def nothing(value: int) -> list[int]:
        called.append(value)
        return []

    pace, _, _ = pace_of(10)

    assert [found for found in paced(nothing, pace, 1000, capacity=10) if found] == []
    assert sorted(called) == list(range(1000))


def test_a_function_with_many_results_is_called_for_all_rows() -> None:
    class Many(Counted):
        async def async_invoke(self, value: int) -> list[int]:
            return [value] * 30

    function = Many()
    pace, _, _ = pace_of(10)

    batches = list(sent_by(pace, paced(function, pace, 300, capacity=10), function))

    assert [value for batch in batches for value in batch] == [value for value in range(300) for _ in range(30)]


def test_run_ends_when_its_reader_has_gone() -> None:
    function = Counted()
    pace, reader, _ = pace_of(10)
    results = paced(function, pace, 1000, capacity=10)
    next(results)

    reader.has_gone = True

    with pytest.raises(ReaderGoneError):
        list(results)
    assert function.begun <= 10


def test_input_that_fails_because_the_reader_has_gone_ends_the_run() -> None:
    pace, reader, _ = pace_of(10)

    def closed() -> Iterator[Sequence[int]]:
        reader.has_gone = True
        raise OSError("closed")
        yield ()

    with pytest.raises(ReaderGoneError):
        list(wait_in_chunks(closed(), Counted(), AsyncOptions(timeout_ms=60_000), pace=pace))


def test_failure_of_the_input_comes_after_the_results_before_it() -> None:
    pace, _, _ = pace_of(10)

    def failing() -> Iterator[Sequence[int]]:
        yield [1, 2]
        raise OSError("broken")

    results = wait_in_chunks(failing(), Counted(), AsyncOptions(timeout_ms=60_000), pace=pace)
    found: list[int] = []

    with pytest.raises(OSError, match="broken"):
        found.extend(value for values in results for value in values)
    assert found == [1, 2]
