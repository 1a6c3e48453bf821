"""What becomes of a record whose call failed for good: on_error, dead letters, and what is known of the failure."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pipeline.streaming import AsyncOperatorError, AsyncTimeoutError, CapturedError, StreamRecord

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


def test_a_captured_error_has_the_input_and_what_went_wrong() -> None:
    with Harness(on_error="capture") as harness:
        harness.process("a", at=7)
        error = ValueError("no such row")

        harness.answer_error("a", error)

        [emitted] = harness.output
        assert isinstance(emitted, StreamRecord)
        captured = emitted.value
        assert captured == CapturedError("a", "ValueError", "no such row", attempts=1, time_spent_ms=0)
        assert captured.error is error
        assert captured.time_spent_ms >= 0


def test_a_captured_error_names_the_module_of_its_class() -> None:
    with Harness(on_error="capture") as harness:
        harness.process("a")

        harness.answer_error("a", UnknownNodeError("n7"))

        [captured] = harness.values()
        assert captured.error_class == f"{UnknownNodeError.__module__}.UnknownNodeError"


def test_a_captured_timeout_is_an_async_timeout_error() -> None:
    with Harness(on_error="capture", timeout_ms=100) as harness:
        harness.process("a")

        harness.advance(100)

        [captured] = harness.values()
        assert captured.error_class.endswith("AsyncTimeoutError")
        assert isinstance(captured.error, AsyncTimeoutError)
        assert "100 ms" in captured.message


def test_a_dead_letter_gets_the_error_and_nothing_is_emitted() -> None:
    letters: list[CapturedError] = []
    with Harness(on_error="capture", dead_letter=letters.append) as harness:
        harness.process("a", "b")

        harness.answer_error("a", ValueError("no"))
        harness.answer("b", "B")

        assert harness.values() == ["B"]
        assert [(letter.input, letter.message) for letter in letters] == [("a", "no")]
        assert harness.operator.metrics.captured == 1


def test_fail_names_the_attempts_and_how_to_go_on() -> None:
    with Harness(retry=ON_ERROR) as harness:
        harness.process("a")
        for _ in range(2):
            harness.answer_error("a", ValueError("busy"))
            harness.advance(10)

        with pytest.raises(AsyncOperatorError, match=r"after 3 attempts.*set on_error"):
            harness.answer_error("a", ValueError("busy"))


def test_captured_errors_pickle() -> None:
    captured = CapturedError("a", "ValueError", "no", 1, 0.5)

    assert pickle.loads(pickle.dumps(captured)) == captured
