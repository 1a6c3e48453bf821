"""The operator with retries: which outcomes are retried and when, one timeout over all attempts, the end of input."""

from __future__ import annotations

import math
import operator
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.streaming import RetryAfter, RetryStrategy

from ....kit import TIMEOUT_S, until
from .harness import ON_ERROR, HandFunction, Harness, make_host
from .stage import EITHER, LATE, ORDERED, UNORDERED, Options, Rows, check, scenarios


def no_predicate(error: BaseException) -> bool:
    raise RuntimeError("bad predicate")


def retried(attempts: int, delay_ms: int, on_error: Any = ValueError, on_result: Any = None) -> Options:
    return {"retry": RetryStrategy.fixed_delay(attempts, delay_ms, on_result, on_error)}


RETRIED: Options = {"retry": ON_ERROR}
ON_EMPTY = retried(2, 10, None, operator.not_)
ON_BOTH = retried(2, 10, ValueError, operator.not_)
ON_ANYTHING = retried(2, 10, (ValueError, TypeError), operator.not_)
IN_100_MS: Options = {"timeout_ms": 100}
PATIENT: Options = {"timeout_ms": 60_000}

SCENARIOS: Rows = {
    # what is retried, and when
    "an error is retried after the delay": (
        EITHER | RETRIED, "take a@1 | busy a | +9 -> calls a | +1 -> calls a a | ok a A -> stamped A@1",
    ),
    "a result is retried after the delay": (EITHER | ON_EMPTY, "take a | ok a -> out | +10 | ok a A -> out A"),
    "with both predicates both outcomes are retried": (
        ON_BOTH, "take a | ok a | +10 | busy a | +10 | ok a A -> out A ; calls a a a",
    ),
    "an error that the predicate does not want fails at once": (RETRIED, "take a | gone a -> raised a:KeyError:1"),
    "max_attempts are those that may be followed by another": (
        retried(3, 10),
        "take a | busy a | +10 | busy a | +10 | busy a | +10 | busy a -> raised a:ValueError:4 ; calls a a a a",
    ),
    "the last result is emitted although the predicate wants another": (
        retried(1, 10, None, lambda results: True), "take a | ok a 1 | +10 | ok a 2 -> out 2",
    ),
    "each record has its own attempts": (
        UNORDERED | {"retry": RetryStrategy.exponential_backoff(2, 10, 100, 2.0, retry_on_exception=ValueError)},
        "take a | busy a | +10 | busy a | take b | busy b | +10 -> calls a a b b | +10 -> calls a a b b a",
    ),
    "a predicate that raises fails the task": (
        retried(1, 10, no_predicate), "take a | busy a -> raised RuntimeError",
    ),
    # order
    "an unordered record passes one that is retried but no watermark": (
        UNORDERED | RETRIED,
        "take a b ~1 c | busy a | ok c C | ok b B -> out B | +10 | ok a A -> out B A ~1 C",
    ),
    "a record that waits for its retry keeps its place in the queue": (
        RETRIED | {"capacity": 1, "idle": "clock 10 | mailed ok a A"},
        "take a | busy a -> available False | take b -> out A",
    ),
    # one timeout over all attempts
    "the timeout covers all attempts": (
        EITHER | IN_100_MS | retried(100, 30),
        "take a | busy a | +30 | busy a | +30 | busy a | +30 | +10 -> raised a:AsyncTimeoutError:4",
    ),
    "a timeout while an attempt runs gives the hook's results": (
        LATE | EITHER | IN_100_MS | ON_BOTH,
        "take a | busy a | +10 | +90 -> out no_a | late a -> out no_a ; calls a a ; sent 2 ; timed_out 1 ; failed 0",
    ),
    "a timeout while a retry waits gives the hook's results and no other attempt": (
        LATE | EITHER | IN_100_MS | retried(2, 500),
        "take a | busy a | +100 -> out no_a | +1000 -> out no_a ; calls a ; timers 0",
    ),
    # Neither are none at all, which the predicate wants retried.
    "a timeout's results are not retried themselves": (
        IN_100_MS | ON_EMPTY | {"function": lambda: HandFunction(lambda value: [])},
        "take a | +100 | +100 -> calls a ; state",
    ),
    # The attempt has ended, its mail has not run, and the time is over: the retry could not help any more.
    # Returning None is an error only once the operator looks at it.
    **{
        f"a timeout beats an outcome that would be retried: {outcome}, {when}": (
            LATE | IN_100_MS | ON_ANYTHING | mode,
            f"take a | {ends} | mail -> out no_a | +1000 -> out no_a ; calls a ; timed_out 1 ; in_flight 0",
        )
        for outcome, mode in {"busy": ORDERED, "now": UNORDERED, "ok": ORDERED, "none": UNORDERED}.items()
        for when, ends in {
            "that comes before": f"mailed {outcome} a | clock 100", "long before": f"mailed {outcome} a | clock 150",
            "that comes later": f"clock 100 | mailed {outcome} a", "much later": f"clock 150 | mailed {outcome} a",
        }.items()
    },
    "a retry that would start after the timeout never starts": (
        LATE | retried(2, 100) | {"timeout_ms": 150},
        "take a | +100 | busy a | +50 -> out no_a | +500 -> calls a",
    ),
    # the end of input
    "the end of input fires all waiting retries at once": (
        retried(2, 500) | {"idle": "mailed ok a A | mailed ok b B | mailed ok c C"},
        "take a b c | busy a | busy b | busy c | end -> out A B C ; now 0 | +900 -> calls a b c a b c",
    ),
    "after the end of input nothing is retried": (
        RETRIED | {"idle": "mailed busy a"}, "take a | busy a | end -> raised a:ValueError:2",
    ),
    "a result that would be retried is final after the end of input": (
        ON_EMPTY | {"idle": "mailed ok a"}, "take a | end -> out ; calls a",
    ),
    "an outcome whose mail runs after the end of input is final": (
        ON_EMPTY, "take a | mailed ok a | end -> calls a ; now 0",
    ),
    # snapshots
    "a snapshot has the records that wait for a retry": (EITHER | RETRIED, "take a b | busy a -> state a b"),
    "restored records start afresh": (
        RETRIED | {"state": "a"}, "busy a | +10 | busy a | +10 | busy a -> raised a:ValueError:3",
    ),
    # RetryAfter
    "RetryAfter pauses and makes the call again": (
        PATIENT, "take a | pause2 a | +1999 -> calls a | +1 -> calls a a | ok a A -> out A",
    ),
    "RetryAfter pauses all calls of the operator": (
        UNORDERED | PATIENT,
        "take a b | pause2 a | take c -> calls a b | ok b B | +2000 -> calls a b a"
        " | +50 -> calls a b a c",  # the first calls after a pause are 50 ms apart
    ),
    "RetryAfter is no attempt of the strategy": (
        RETRIED | PATIENT,
        "take a | pause1 a | +1000 | pause1 a | +1000 | pause1 a | +1000"
        " | busy a | +1000 | busy a | +1000"  # 10 ms, and a turn at the rate, which the refusals have cut
        " | ok a A -> out A ; retried 5",
    ),
    "RetryAfter ends with the timeout": (
        LATE | {"timeout_ms": 1500}, "take a | pause2 a | +1500 -> out no_a | +2000 -> calls a",
    ),
    "RetryAfter without end is ended by the timeout": (
        LATE | IN_100_MS, "take a | now a | +50 -> calls a a | now a | +50 -> out no_a | +500 -> calls a a",
    ),
    "the end of input waits for a pause": (
        PATIENT | {"idle": "clock 2000 | mailed ok a A"}, "take a | pause2 a | end -> out A",
    ),
    # It got 32 to 35 calls for each row.
    "a service that says now again and again is asked ever less": (
        PATIENT,
        "take a"
        + "".join(
            f" | now a | +{min(50 * 2**refusal, 5000) - 1} -> made {refusal + 1} | +1 -> made {refusal + 2}"
            for refusal in range(9)
        )
        + " | ok a A -> out A",
    ),
}  # fmt: skip


@scenarios(SCENARIOS)
def test_scenario(options: Options, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(options, script, monkeypatch)


def test_a_retry_that_waits_ends_with_close_on_a_host_that_goes_on() -> None:
    function = HandFunction()
    host = make_host(function)
    host.start()
    with Harness(host, retry=ON_ERROR, timeout_ms=60_000) as harness:
        harness.process("a", "b")
        until(lambda: len(function.calls) == 2, "two calls")
        for call, error in zip(list(function.calls), (ValueError("busy"), RetryAfter(0.02)), strict=True):
            call.fail(error)
        function.settle()
        harness.run_mail()

    harness.clock.advance(1000)
    harness.run_mail()
    function.settle()

    assert [call.value for call in function.calls] == ["a", "b"]
    assert host.stop(TIMEOUT_S)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120),
        (" 1.5 ", 1.5),
        (None, 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400),
        ("1e300", 86_400),
        (10**400, 86_400),
        *((text, 0) for text in ("", "soon", "-1", "nan", "-inf", "9" * 400, "Wed, 99 Foo 2015", "\0", ",")),
        *((number, 0) for number in (-0.5, math.nan, math.inf)),
    ],
)
def test_retry_after_takes_what_the_header_has(header: Any, seconds: float) -> None:
    """A negative or an empty header failed the row for good."""
    asked = RetryAfter(header)

    assert asked.delay_s == seconds
    assert pickle.loads(pickle.dumps(asked)).delay_s == asked.delay_s


@pytest.fixture
def five_hours_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("form", ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"])
def test_retry_after_takes_a_date_to_come(form: str, five_hours_behind: None) -> None:
    """In the third format, that of asctime, a date counted as local time."""
    header = time.strftime(form, time.gmtime(time.time() + 100))

    assert 40 < RetryAfter(header).delay_s <= 100


def test_a_predicate_that_changes_its_mind_loses_no_record() -> None:
    """It wanted another attempt, was asked once more since there was no time for that, and then did not want one."""
    answers = iter([True, False, False])
    retry = RetryStrategy.fixed_delay(3, 10, retry_on_exception=lambda _: next(answers))
    with Harness(retry=retry, timeout_ms=100, on_error="capture") as harness:
        harness.process("a")
        harness.fail("a", ValueError("busy"))  # its mail has not run yet

        harness.clock.advance(100)
        harness.run_mail()

        assert [error.input for error in harness.values()] == ["a"]
