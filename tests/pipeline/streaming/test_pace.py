"""How far calls run ahead of the reader of their results, and when results are sent to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from pipeline.streaming import AsyncFunction, AsyncOptions
from pipeline.streaming.pace import ReaderGoneError, ReaderPace

from ...kit.scenarios import play
from .calls.harness import wait_in_chunks

MOST = 1000


class Reader:
    """Reads what was sent when the test says so."""

    reads = True
    has_gone = False

    def has_read_all(self) -> bool:
        return self.reads

    def is_gone(self) -> bool:
        return self.has_gone


class Stage:
    """A pace on a clock, and its reader, which reads at once unless it is `away` until it is `back`.

    `send 3 4` sends two batches. `room:9,8,7,6` is the room for rows when 9 calls have begun, 8 have passed, 7 are held
    and 6 were emitted. `due:20,0.5` are the rows to send of 20 of which the oldest has waited for 0.5 s.
    """

    def __init__(self, capacity: int = 100, calls: int | None = None, **options: Any) -> None:
        self.reader = Reader()
        self.now_s = 0.0
        self.pace = ReaderPace(calls or capacity, capacity, self.reader, clock=lambda: self.now_s, **options)

    def play(self, verb: str, *words: str) -> None:
        match verb:
            case "send":
                for size in words:
                    self.pace.has_sent(int(size))
            case "away" | "back":
                self.reader.reads = verb == "back"
            case _:
                self.now_s += float(verb)

    def look(self, what: str) -> Iterable[object]:
        name, _, numbers = what.partition(":")
        given = [float(number) for number in numbers.split(",") if number]
        match name:
            case "room":
                begun, passed, held, emitted = map(int, given)
                return [self.pace.room(begun=begun, passed=passed, held=held, emitted=emitted)]
            case "due":
                return [self.pace.rows_due(int(given[0]), given[1], MOST if len(given) == 2 else int(given[2]))]
            case "probe":
                return [self.pace.is_probe_due()]
        return [self.pace.takes_results()]


SCENARIOS: dict[str, tuple[dict[str, Any], str]] = {
    "at first there is room for the capacity": ({}, "+0 -> room:0,0,0,0 100 ; room:60,20,20,0 40"),
    "room grows with what the reader has taken, which is the first of two batches": (
        {"capacity": 1000, "calls": 100, "per_taken": 1},
        "send 300 -> due:0,0 0 | send 100 -> due:0,0 0 ; room:400,400,0,400 900",
    ),
    "room grows by more for each row taken if so given": (
        {"capacity": 1000, "calls": 100, "per_taken": 4},
        "send 300 -> due:0,0 0 | send 100 -> due:0,0 0 ; room:400,400,0,400 1100",
    ),
    "results that were not taken leave no room": ({}, "+0 -> room:100,100,0,100 0"),
    "a batch was taken when the next has been read": (
        {},
        "+0 -> due:100,0 1 | send 30 -> room:100,100,0,100 0 | away | send 40 -> room:100,100,0,100 0"
        " | back -> room:100,100,0,100 30",
    ),
    "batches sent before the last was read count as one": ({}, "away | send 30 40 | back -> room:100,100,0,100 0"),
    "rows without results need not be taken": ({}, "+0 -> room:100,100,20,0 80"),
    "the bound is the calls then the capacity then the rows taken": (
        {"calls": 10},
        "send 9 0 -> room:9,9,0,9 10 | send 1 0 -> room:10,10,0,10 100 | send 990 0 -> room:1000,1000,0,1000 1000",
    ),
    "results stay with the operator while two batches wait": (
        {}, "away | send 1 -> due:19,60,10 0 ; takes True ; due:20,60,10 0 ; takes False",
    ),
    "rows are taken in by more than a few": ({"capacity": 160}, "+0 -> room:151,151,151,0 0 ; room:150,150,150,0 10"),
    "no batch is larger than all before it": (
        {},
        "+0 -> due:1000,0 1 | send 1 -> due:1000,0 1 | send 1 -> due:1000,0 2 | send 2 -> due:1000,0 4"
        " | send 4 -> due:1000,0 8 | send 8 -> due:1000,0 16",
    ),
    "nothing is sent before the last batch was read": (
        {}, "away | send 1 | +60 -> due:1000,60 0 ; probe False | back -> due:1000,60 1",
    ),
    "a small batch waits for more rows once many were taken": (
        {}, "send 800 0 -> due:99,0.05 0 ; due:99,0.1 99 ; due:100,0 100 ; due:5000,0 800",
    ),
    "the reader is asked whether it took the last rows when calls wait for that": (
        {},
        "+0 -> due:1,0 1 | send 1 -> probe False ; due:0,0 0 ; room:100,100,99,1 0 ; probe True"
        " | send 0 -> room:100,100,99,1 0 ; probe False",
    ),
    "the reader gets something now and then while there are no results": (
        {}, "+0 -> probe False | +0.5 -> probe True | send 0 -> probe False",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "script"), SCENARIOS.values(), ids=SCENARIOS)
def test_scenario(options: dict[str, Any], script: str) -> None:
    play(Stage(**options), script)


def pace_of(capacity: int) -> tuple[ReaderPace, Reader]:
    stage = Stage(capacity)
    return stage.pace, stage.reader


def test_an_unread_batch_is_asked_for_soon_and_then_less_often() -> None:
    pace, reader = pace_of(100)
    reader.reads = False
    pace.has_sent(1)

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
    pace, _ = pace_of(50)

    batches = list(sent_by(pace, paced(function, pace, 5_000, capacity=50, output_mode=mode), function))

    assert sorted(value for batch in batches for value in batch) == list(range(5_000))
    # The queue and what is read ahead, results ready, those that wait, and the last batch, which counts as taken later.
    assert function.most_ahead <= 50 + 12 + 2 * 256 + 3 * MOST + 256


def test_a_reader_that_takes_few_rows_pays_for_the_capacity_beyond_them() -> None:
    function = Counted()
    pace, _ = pace_of(50)
    results = paced(function, pace, 20_000, capacity=50)
    batches = sent_by(pace, results, function)

    taken = [value for _ in range(4) for value in next(batches)]

    assert taken == list(range(len(taken)))
    assert len(taken) <= 8
    assert function.begun <= len(taken) + 50
    results.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("results", [0, 30])
def test_a_function_with_many_results_or_none_is_called_for_all_rows(results: int) -> None:
    class Repeating(Counted):
        async def async_invoke(self, value: int) -> list[int]:
            return await super().async_invoke(value) * results

    function = Repeating()
    pace, _ = pace_of(10)

    batches = list(sent_by(pace, paced(function, pace, 300, capacity=10), function))

    assert [value for batch in batches for value in batch] == [value for value in range(300) for _ in range(results)]
    assert function.begun == 300


def test_run_ends_when_its_reader_has_gone() -> None:
    function = Counted()
    pace, reader = pace_of(10)
    results = paced(function, pace, 1000, capacity=10)
    next(results)

    reader.has_gone = True

    with pytest.raises(ReaderGoneError):
        list(results)
    assert function.begun <= 10


def test_input_that_fails_because_the_reader_has_gone_ends_the_run() -> None:
    pace, reader = pace_of(10)

    def closed() -> Iterator[Sequence[int]]:
        reader.has_gone = True
        raise OSError("closed")
        yield ()

    with pytest.raises(ReaderGoneError):
        list(wait_in_chunks(closed(), Counted(), AsyncOptions(timeout_ms=60_000), pace=pace))


def test_failure_of_the_input_comes_after_the_results_before_it() -> None:
    pace, _ = pace_of(10)

    def failing() -> Iterator[Sequence[int]]:
        yield [1, 2]
        raise OSError("broken")

    results = wait_in_chunks(failing(), Counted(), AsyncOptions(timeout_ms=60_000), pace=pace)
    found: list[int] = []

    with pytest.raises(OSError, match="broken"):
        found.extend(value for values in results for value in values)
    assert found == [1, 2]
