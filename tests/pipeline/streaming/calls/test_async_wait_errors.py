"""What becomes of a record whose call failed for good: on_error, dead letters, and what is known of the failure."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pipeline.streaming import AsyncOperatorError, AsyncTimeoutError, CapturedError, StreamRecord, Watermark

from .harness import MODES, ON_ERROR, Harness


class UnknownNodeError(LookupError):
    pass


@MODES
def test_drop_goes_on_without_the_record(mode: str) -> None:
    with Harness(output_mode=mode, on_error="drop") as harness:
        harness.process("a", "b")
        harness.watermark(1)

        harness.answer_error("a", ValueError("no"))
        harness.answer("b", "B")

        assert harness.values() == ["B", Watermark(1)]
        assert harness.operator.metrics.dropped == 1
        assert harness.operator.snapshot_state() == []


@MODES
def test_capture_emits_the_error_in_place_of_the_results(mode: str) -> None:
    with Harness(output_mode=mode, on_error="capture") as harness:
        harness.process("a", at=7)
        error = ValueError("no such row")

        harness.answer_error("a", error)

        [emitted] = harness.output
        assert isinstance(emitted, StreamRecord)
        assert emitted.timestamp_ms == 7
        captured = emitted.value
        assert captured == CapturedError("a", "ValueError", "no such row", attempts=1, time_spent_ms=0)
        assert captured.error is error
        assert captured.time_spent_ms >= 0
        assert harness.operator.metrics.captured == 1


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


def test_a_dead_letter_that_raises_fails_the_task() -> None:
    def full(letter: CapturedError) -> None:
        raise OSError("disk full")

    with Harness(on_error="capture", dead_letter=full) as harness:
        harness.process("a")

        with pytest.raises(AsyncOperatorError, match="disk full"):
            harness.answer_error("a", ValueError("no"))


@MODES
def test_a_function_may_turn_an_error_into_results(mode: str) -> None:
    def on_error(captured: CapturedError) -> list[Any]:
        return [captured.input, captured.message]

    with Harness(output_mode=mode, on_error=on_error) as harness:
        harness.process("a", at=7)

        harness.answer_error("a", ValueError("no"))

        assert harness.output == [StreamRecord("a", 7), StreamRecord("no", 7)]


def test_an_error_function_that_raises_fails_the_task() -> None:
    def on_error(captured: CapturedError) -> list[Any]:
        assert captured.error is not None
        raise captured.error

    with Harness(on_error=on_error) as harness:
        harness.process("a")

        with pytest.raises(AsyncOperatorError, match="no such row"):
            harness.answer_error("a", ValueError("no such row"))


def test_an_error_function_gets_timeouts_too() -> None:
    with Harness(on_error=lambda captured: [captured.input], timeout_ms=100) as harness:
        harness.process("a")

        harness.advance(100)

        assert harness.values() == ["a"]


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
