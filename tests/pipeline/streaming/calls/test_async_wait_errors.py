"""What becomes of a record whose call failed for good: on_error, dead letters, and what is known of the failure."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pipeline.streaming import AsyncOperatorError, CapturedError

from .harness import ON_ERROR, Harness
from .stage import EITHER, Options, Rows, check, scenarios


class UnknownNodeError(LookupError):
    pass


def full_disk(letter: CapturedError) -> None:
    raise OSError("disk full")


def raise_it(captured: CapturedError) -> list[Any]:
    assert captured.error is not None
    raise captured.error


SCENARIOS: Rows = {
    "drop goes on without the record": (
        EITHER | {"on_error": "drop"}, "take a b ~1 | busy a | ok b B -> out B ~1 ; dropped 1 ; state",
    ),
    "capture emits the error in place of the results": (
        EITHER | {"on_error": "capture"}, "take a@7 | busy a -> stamped !a:ValueError@7 ; captured 1",
    ),
    "a dead letter that raises fails the task": (
        {"on_error": "capture", "dead_letter": full_disk}, "take a | busy a -> raised a:OSError:1",
    ),
    "a function may turn an error into results": (
        EITHER | {"on_error": lambda captured: [captured.input, captured.message]},
        "take a@7 | busy a -> stamped a@7 busy@7",
    ),
    "an error function that raises fails the task": (
        {"on_error": raise_it}, "take a | busy a -> raised a:ValueError:1",
    ),
    "an error function gets timeouts too": (
        {"on_error": lambda captured: [captured.input], "timeout_ms": 100}, "take a | +100 -> out a",
    ),
}  # fmt: skip


@scenarios(SCENARIOS)
def test_scenario(options: Options, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(options, script, monkeypatch)


@pytest.mark.parametrize(
    ("error", "named"),
    [(ValueError("no such row"), "ValueError"), (UnknownNodeError("no such row"), f"{__name__}.UnknownNodeError")],
)
def test_a_captured_error_has_the_input_and_what_went_wrong(error: Exception, named: str) -> None:
    with Harness(on_error="capture") as harness:
        harness.process("a")

        harness.answer_error("a", error)

        [captured] = harness.values()
    assert captured == CapturedError("a", named, "no such row", attempts=1, time_spent_ms=0)
    assert captured.error is error
    assert captured.time_spent_ms >= 0
    assert pickle.loads(pickle.dumps(captured)) == captured


def test_the_error_of_a_task_has_that_of_the_call_the_attempts_and_how_to_go_on() -> None:
    error = ValueError("busy")
    with Harness(retry=ON_ERROR) as harness:
        harness.process("a")
        for _ in range(2):
            harness.answer_error("a", ValueError("busy"))
            harness.advance(10)

        message = r"could not complete the element 'a' after 3 attempts.*busy.*set on_error"
        with pytest.raises(AsyncOperatorError, match=message) as failure:
            harness.answer_error("a", error)

    assert failure.value.__cause__ is failure.value.cause is error
    assert (failure.value.value, failure.value.attempts) == ("a", 3)
