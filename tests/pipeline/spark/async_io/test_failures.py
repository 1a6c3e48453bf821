from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from pipeline.spark import ordered_wait, task_failure
from pipeline.spark.failures import AsyncTaskError, open_failure, raise_in_worker, row_failure
from pipeline.streaming import AsyncFunction, AsyncOperatorError, RetryStrategy

from ....kit.spark import json_lines

TIMEOUT_S = 180.0


def raised(function: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as info:  # noqa: PT011 - any error
        function()
    return info.value


def divide() -> float:
    return 1 / 0


def look_up() -> None:
    try:
        divide()
    except ZeroDivisionError as error:
        raise LookupError("no such row") from error


def in_a_library() -> None:
    subprocess.run([sys.executable, 5], check=True)  # type: ignore[list-item]


def test_text_has_the_row_the_cause_the_attempts_and_the_users_frames() -> None:
    cause = raised(look_up)

    text = str(row_failure("ordered_wait(look_up)", AsyncOperatorError("async wait", Row(id=7), cause, 3)))

    first, *rest = text.splitlines()
    assert first == "ordered_wait(look_up): the row Row(id=7) has failed after 3 attempts: LookupError: no such row"
    frames = [re.sub(r".*, line \d+, ", "", line.strip()) for line in rest if " in " in line or "caused" in line]
    assert frames == [
        "in raised",
        "in look_up",
        "caused by ZeroDivisionError: division by zero",
        "in look_up",
        "in divide",
    ]
    assert f'File "{__file__}"' in text
    assert all(line.startswith("  ") for line in rest)


def test_frames_of_libraries_are_left_out() -> None:
    text = str(open_failure("ordered_wait(f)", raised(in_a_library)))

    assert text.startswith("ordered_wait(f): the function could not be opened: TypeError: ")
    assert "in in_a_library" in text
    assert "subprocess.py" not in text


def test_an_error_without_frames_of_the_user_shows_the_last_frame() -> None:
    cause = raised_in_library_only()

    text = str(row_failure("ordered_wait(f)", AsyncOperatorError("async wait", 1, cause, 1)))

    assert "subprocess.py" in text


def raised_in_library_only() -> Exception:
    cause = raised(in_a_library)
    traceback = cause.__traceback__
    while traceback is not None and "subprocess" not in traceback.tb_frame.f_code.co_filename:
        traceback = traceback.tb_next
    return cause.with_traceback(traceback)


def test_outside_a_worker_tracebacks_stay_enabled() -> None:
    with pytest.raises(AsyncTaskError, match="x"):
        raise_in_worker(AsyncTaskError("x"))

    assert not hasattr(sys, "tracebacklimit")


def test_a_lone_surrogate_in_the_text_is_escaped() -> None:
    """Spark's worker could not send the text, and the job waited for it forever."""
    with pytest.raises(AsyncTaskError, match=re.escape(r"no file a\udcff")):
        raise_in_worker(AsyncTaskError("no file a\udcff"))


def test_other_errors_are_not_task_failures() -> None:
    assert task_failure(ValueError("x")) is None
    assert task_failure(None) is None


def test_text_is_found_in_the_causes_of_an_error() -> None:
    inner = RuntimeError("Job aborted: pipeline.spark.failures.AsyncTaskError: f: it broke\n  here\n\tat java.lang.X")
    outer = ValueError("outer")
    outer.__cause__ = inner

    assert task_failure(outer) == "f: it broke\n  here"


async def picky(row: Row) -> tuple[int]:
    if row.id == 5:
        raise ValueError(f"five is right out: {row.id}")
    return (row.id,)


def failing(table: Any) -> Any:
    retry = RetryStrategy.fixed_delay(2, 1, retry_on_exception=ValueError)
    return ordered_wait(table, picky, "id long", timeout=TIMEOUT_S, retry=retry)


EXPECTED_LINE = "the row Row(id=5) of partition 0 has failed after 3 attempts: ValueError: five is right out: 5"


def test_error_of_an_action_is_short(either: SparkSession) -> None:
    with pytest.raises(PySparkException) as info:
        failing(either.range(0, 8, 1, 1)).collect()

    text = task_failure(info.value) or ""
    assert EXPECTED_LINE in text.splitlines()[0]
    assert "in picky" in text
    for each in [text, str(info.value)] if isinstance(either, SparkSession) else [text]:
        assert "org.apache.spark" not in each
        assert len(each.splitlines()) < 12


def test_helper_gives_the_text_of_a_failed_stream(either: SparkSession, tmp_path: Path) -> None:
    json_lines(tmp_path / "in" / "rows.json", ({"id": i} for i in range(8)))
    stream = either.readStream.schema("id long").json(str(tmp_path / "in"))
    query: StreamingQuery = failing(stream).writeStream.format("noop").trigger(availableNow=True).start()

    with pytest.raises(PySparkException) as info:
        query.awaitTermination(int(TIMEOUT_S))

    for error in (info.value, query.exception()):
        text = task_failure(error)
        assert text is not None
        assert EXPECTED_LINE in text
        assert "Streaming Query" not in text


def test_function_that_cannot_be_opened_is_reported(spark: SparkSession) -> None:
    class Closed(AsyncFunction[Row, tuple[int]]):
        def open(self) -> None:
            raise ConnectionRefusedError("no server")

        def close(self) -> None:
            pass

        async def async_invoke(self, row: Row) -> list[tuple[int]]:
            return []

    with pytest.raises(PySparkException) as info:
        ordered_wait(spark.range(1), Closed(), "id long", timeout=TIMEOUT_S).collect()

    text = task_failure(info.value)
    assert "could not be opened: ConnectionRefusedError: no server" in text.splitlines()[0]
    assert "in open" in text


def test_answer_of_two_gib_is_the_error_of_its_row(spark: SparkSession) -> None:
    def body(row: Any) -> bytes:
        return bytes(2**31) if row.id == 1 else b"small"

    rows = ordered_wait(spark.range(3).coalesce(1), body, "body binary", timeout=60, on_error="capture").collect()

    assert [row.body for row in rows] == [b"small", None, b"small"]
    assert rows[1].error.error_class == "pipeline.spark.errors.ResultSchemaError"
    assert "a row of Spark holds" in rows[1].error.message
