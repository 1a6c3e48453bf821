"""When a record's timeout and deadline begin, what they include, and what the error says about the time."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from dispatcher.aio import RateLimit
from pipeline.streaming import AsyncTimeoutError, RetryAfter, RetryStrategy

from ....kit import TIMEOUT_S, until
from ....kit.scenarios import play
from .harness import Harness, fallback, make_host, on_one_clock
from .stage import LATE, LATE_BATCH, OperatorStage, Options, Rows, check, scenarios

ON_ERROR = RetryStrategy.fixed_delay(3, 500, retry_on_exception=ValueError)
RETRIED: Options = {"retry": ON_ERROR}
ONE_AT_A_TIME: Options = {"concurrency": 1}
ONE_A_SECOND: Options = {"rate_limit": RateLimit(1, burst=1)}
IN_100_MS: Options = {"timeout_ms": 100}
BY_50_MS: Options = {"deadline_ms": 50}
CAPTURED: Options = {"on_error": "capture"}

LATE_IN_2000_MS = "take a b | +1000 | ok a A | +300 | busy b | +500 | +1200"

SCENARIOS: Rows = {
    # the timeout begins with the first call
    "a call that waits for a slot is not late": (
        LATE | ONE_AT_A_TIME | IN_100_MS,
        "take a b c | +100 | +90 | ok b B -> out no_a B | +100 -> out no_a B no_c",
    ),
    # Most of 100 rows at 20 a second were late within 2 seconds.
    "a call that waits for the rate is not late": (
        LATE | ONE_A_SECOND | IN_100_MS,
        "take a b | ok a A | +1000 -> out A ; calls a b | +99 -> out A | +1 -> out A no_b",
    ),
    "a call that waits for a pause is not late": (
        LATE | {"timeout_ms": 5000},
        "take a | pause4 a | take b | +4000 | ok a A | +50"  # the first calls after a pause are 50 ms apart
        " | +4999 -> out A | +1 -> out A no_b",
    ),
    "a value of a batch that gathers is not late": (
        LATE_BATCH | IN_100_MS | {"max_batch_size": 2, "linger_ms": 500},
        "take 1 | +400 | take 2 | +99 -> out | +1 -> out no_1 no_2",
    ),
    "a record that shares a call has a timeout from when that is sent": (
        LATE | ONE_AT_A_TIME | IN_100_MS | {"dedupe_by": lambda value: value[0]},
        "take a b1 b2 | +90 | ok a A | +60 | take b3 | +40 -> out A no_b1 no_b2 ; calls a b1 b3"
        " | ok b3 B -> out A no_b1 no_b2 B",
    ),
    "the timeout covers all attempts and the waits between them": (
        LATE | RETRIED | ONE_A_SECOND | {"timeout_ms": 1200},
        "take a | busy a | +1000 -> calls a a | busy a | +200 -> out no_a",
    ),
    # The timeouts of calls made again run; behind a long line of others they would be late there.
    "calls made again go before those not sent yet": (
        {"rate_limit": RateLimit(10, burst=1), "retry": RetryStrategy.fixed_delay(3, 10, None, ValueError)},
        "take a b c d | busy a | +10 | +90 -> calls a a",
    ),
    # The late one could not be ended meanwhile, so its slot was taken.
    "a call that waits for a late one is not late because the operator was held up": (
        LATE | IN_100_MS | {"capacity": 1, "read_ahead": 1},
        "take a b" + 10 * " | clock 100" + " | mail -> out no_a | ok b B -> out no_a B",
    ),
    # the deadline
    "the deadline runs while a call waits for the rate": (
        LATE | ONE_A_SECOND | {"deadline_ms": 500}, "take a b | ok a A | +500 -> out A no_b | +5000 -> calls a",
    ),
    "the deadline ends a call that is in flight": (
        LATE | {"timeout_ms": 1000, "deadline_ms": 300}, "take a | +300 -> out no_a ; cancelled a",
    ),
    "a record is ended by its deadline without a timeout": (
        LATE | BY_50_MS | {"timeout_ms": 0}, "take a | +50 -> out no_a ; in_flight 0",
    ),
    "a record that waits for a retry is ended by its deadline": (
        LATE | RETRIED | BY_50_MS, "take a | busy a | +50 -> out no_a ; in_flight 0",
    ),
    "answers that have arrived win against the deadline": (
        LATE | BY_50_MS, "take a | mailed ok a A | clock 50 | mail -> out A",
    ),
    "the timeout counts where it ends before the deadline": (
        CAPTURED | IN_100_MS | {"deadline_ms": 300},
        "take a | +100 -> deadlines None | +300 -> out !a:AsyncTimeoutError",
    ),
    "an outcome that would be retried after the deadline ends the record": (
        CAPTURED | RETRIED | BY_50_MS, "take a | mailed busy a | clock 50 | mail -> deadlines 50 ; calls a",
    ),
    # where the time went
    "the error of a record that was retried says where its time went": (
        CAPTURED | RETRIED | ONE_AT_A_TIME | {"timeout_ms": 2000}, f"{LATE_IN_2000_MS} -> times 1000/1500/500",
    ),
    "the error of a record that waits for its retry or its turn says so": (
        CAPTURED | RETRIED | ONE_A_SECOND | {"deadline_ms": 1100, "timeout_ms": 9000},
        "take a b | +100 | busy a | +500 | +400 -> calls a a | busy a | +100 -> times 400/100/600 1100/0/0",
    ),
    "the error of a record that shares a call counts that call": (
        CAPTURED | ONE_AT_A_TIME | IN_100_MS | {"dedupe_by": str.upper},
        "take a b B | +70 | ok a 1 | +100 -> times 70/100/0 70/100/0",
    ),
    # the time that calls wait for the limits
    "an operator without limits counts no wait for them": ({}, "take a | ok a A -> limit_waits 0"),
    "each call of a limited operator has the time it waited": (
        RETRIED | {"rate_limit": RateLimit(10, burst=1), "timeout_ms": 9000},
        "take a b c | busy a | +100 | ok b B | +100 | ok c C | +300 | ok a A -> sent 4 ; limit_waits 4 0.3",
    ),
}  # fmt: skip


@scenarios(SCENARIOS)
def test_scenario(options: Options, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(options, script, monkeypatch)


@pytest.mark.parametrize("is_blocking", [True, False], ids=["pool", "loop"])
def test_a_call_that_the_host_returned_unsent_in_a_pause_has_its_whole_timeout(
    monkeypatch: pytest.MonkeyPatch, is_blocking: bool
) -> None:
    """Nor is it begun in the pause: a pool's threads and a loop went on with the calls that had been submitted."""
    begun: list[str] = []

    def refuse_first(value: str) -> list[str]:
        begun.append(value)
        assert go_on[len(begun) - 1].wait(TIMEOUT_S)
        if len(begun) == 1:
            raise RetryAfter(3.0)
        return [value]

    async def refuse_first_on_a_loop(value: str) -> list[str]:
        return refuse_first(value)

    go_on = [threading.Event() for _ in range(3)]
    function: Any = refuse_first if is_blocking else refuse_first_on_a_loop
    harness: Harness = Harness(
        function, pool_size=1, capacity=1, read_ahead=1, timeout_ms=2000, on_error="capture", output_mode="unordered"
    )
    on_one_clock(monkeypatch, harness)
    with harness:
        harness.process("a", "b")
        until(lambda: begun)
        harness.clock.advance(1000)
        go_on[0].set()
        harness.run_until(lambda: harness.operator.metrics.retried)

        harness.advance(1000)  # "a" is late in the pause that it asked for
        assert [error.input for error in harness.values()] == ["a"]
        harness.advance(1999)
        assert begun == ["a"]
        harness.advance(1)
        until(lambda: harness.run_mail() or len(begun) == 2)  # a slow thread of the pool returns "b" only now
        harness.advance(1900)
        go_on[1].set()
        harness.run_until(lambda: len(harness.values()) == 2)

        assert begun == ["a", "b"]
        assert harness.values()[1] == "b"


def test_a_call_that_waits_for_a_thread_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is held by a call that is late and does not return."""
    begun: list[str] = []

    def wait(value: str) -> list[str]:
        begun.append(value)
        assert go_on[value].wait(TIMEOUT_S)
        return [value]

    go_on = {value: threading.Event() for value in "ab"}
    harness: Harness = Harness(wait, pool_size=1, timeout_ms=100, on_error="capture")
    on_one_clock(monkeypatch, harness)
    with harness:
        harness.process("a", "b")
        until(lambda: begun == ["a"])
        harness.advance(100)
        assert [error.input for error in harness.values()] == ["a"]

        harness.advance(150)
        go_on["a"].set()
        until(lambda: begun == ["a", "b"])
        harness.advance(90)
        assert len(harness.values()) == 1
        go_on["b"].set()
        harness.run_until(lambda: len(harness.values()) == 2)

        assert harness.values()[1] == "b"


@pytest.mark.parametrize(
    ("options", "ms"),
    [({}, [100, 100, 99]), ({"capacity": 1, "read_ahead": 1}, [100, 99])],
    ids=["submitted", "read ahead"],
)
def test_a_call_for_which_no_thread_comes_free_is_late_at_last(
    monkeypatch: pytest.MonkeyPatch, options: Options, ms: list[int]
) -> None:
    """A blocking call that is late keeps its thread; without an end, what waits for that would wait for ever."""

    def hang(value: str) -> list[str]:
        has_begun.set()
        assert go_on.wait(TIMEOUT_S)
        return [value]

    has_begun, go_on = threading.Event(), threading.Event()
    harness: Harness = Harness(hang, pool_size=1, timeout_ms=100, on_error="capture", **options)
    on_one_clock(monkeypatch, harness)
    with harness:
        harness.process("a", "b")
        assert has_begun.wait(TIMEOUT_S)
        for each in ms:
            harness.advance(each)
        assert [error.input for error in harness.values()] == ["a"]

        harness.advance(1)

        assert [error.input for error in harness.values()] == ["a", "b"]
        assert "could not begin, because calls before it do not end" in harness.values()[1].message
        go_on.set()


def test_a_call_whose_timeout_was_put_off_is_given_up_when_the_operator_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host that goes on, its thread would be taken for it."""
    host = make_host(lambda value: go_on.wait(TIMEOUT_S) and begun.append(value), pool_size=1)
    begun: list[Any] = []
    go_on = threading.Event()
    host.start()
    submit, submitted = host.submit, []
    monkeypatch.setattr(host, "submit", lambda calls: submitted.extend(calls) or submit(calls))
    with Harness(host, capacity=1, read_ahead=1, timeout_ms=100, on_error="capture") as harness:
        harness.process("a", "b")
        harness.advance(150)

    assert [call.is_cancelled for call in submitted] == [True, True]
    go_on.set()
    assert host.stop(TIMEOUT_S)


def test_many_records_past_their_deadlines_leave_the_line() -> None:
    with Harness(fallback(), concurrency=1, capacity=1000, deadline_ms=100) as harness:
        harness.process(*range(1000))

        harness.advance(100)
        harness.process("last")

        assert len(harness.values()) == 1000
        assert harness.called() == [0, "last"]


@pytest.mark.parametrize(
    ("options", "script", "beginning", "total_ms", "advice"),
    [
        (
            RETRIED | ONE_AT_A_TIME | {"timeout_ms": 2000},
            LATE_IN_2000_MS,
            "no answer within 2000 ms (attempt 2; 1000 ms waiting for the limit, 1500 ms in flight, "
            "500 ms between attempts). ",
            3000,
            "Raise the timeout",
        ),
        (
            ONE_AT_A_TIME | {"deadline_ms": 1100, "timeout_ms": 9000},
            "take a b | +1100",
            "no answer by the deadline, 1100 ms after the record was taken in (attempt 1; 1100 ms waiting for",
            1100,
            "Raise the deadline",
        ),
    ],
    ids=["timeout", "deadline"],
)
def test_the_message_of_a_timeout_says_where_the_time_went(
    options: Options, script: str, beginning: str, total_ms: float, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = OperatorStage(**options, **CAPTURED)
    on_one_clock(monkeypatch, stage.harness)
    with stage.harness:
        play(stage, script)

    error = stage.harness.values()[-1].error
    copy = pickle.loads(pickle.dumps(error))

    assert isinstance(error, AsyncTimeoutError)
    assert str(error).startswith(beginning)
    assert error.times is not None
    assert error.times.total_ms == total_ms
    assert advice in str(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))
