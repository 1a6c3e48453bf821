"""A failed task in a few lines: the row, the cause and the user's own frames, from the worker to the driver.

Spark sends no exception to the driver, only its text, and wraps that into others of its own. So the text is made to be
found again: after the name of the class come one line that says what happened, and indented ones for the rest.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Final, NoReturn

from pyspark import TaskContext

from pipeline.spark.errors import AsyncIOError
from pipeline.streaming.errors import AsyncOperatorError, describe, quoted

_INDENT: Final = "  "
_FRAMES: Final = 8
_CAUSES: Final = 4
_OWN_PACKAGES: Final = tuple(str(Path(__file__).parents[2] / name) + "/" for name in ("pipeline", "dispatcher"))
_LIBRARIES: Final = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class AsyncTaskError(AsyncIOError):
    """A Spark task has failed for one row, or could not open the user's function. The driver sees its text alone."""


_MARK: Final = f"{AsyncTaskError.__module__}.{AsyncTaskError.__qualname__}: "


def row_failure(operator: str, error: AsyncOperatorError) -> AsyncTaskError:
    """What to raise in the worker for a record that has failed the task."""
    tried = f" after {error.attempts} attempts" if error.attempts > 1 else ""
    return AsyncTaskError(
        f"{operator}: the row {quoted(error.value)}{_partition()} has failed{tried}: {describe(error.cause)}"
        + _details(error.cause)
        + f'\n{_INDENT}To go on without such rows, set on_error to "drop", "capture" or a function.'
    )


def open_failure(operator: str, error: BaseException) -> AsyncTaskError:
    """What to raise in the worker for a function that could not be opened."""
    return AsyncTaskError(f"{operator}: the function could not be opened: {describe(error)}" + _details(error))


def raise_in_worker(error: AsyncTaskError) -> NoReturn:
    """Raise `error` so that Spark shows nothing but its text.

    Spark prints the whole way through its own worker above the text. In a worker, which ends with this error, it is
    told to print no frames; those that matter are in the text.
    """
    if TaskContext.get() is not None:
        sys.tracebacklimit = 0
    raise error from None


def task_failure(error: BaseException | None) -> str | None:
    """The text of the task's failure somewhere in an error that Spark has raised; None if it is about something else.

    For errors of actions, of streaming queries (`query.exception()` too) and of Spark Connect.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = str(error)
        start = text.find(_MARK)
        if start >= 0:
            first, *rest = text[start + len(_MARK) :].splitlines()
            lines = [first]
            for line in rest:
                if not line.startswith(_INDENT):
                    break
                lines.append(line)
            return "\n".join(lines)
        error = error.__cause__ or error.__context__
    return None


def _partition() -> str:
    context = TaskContext.get()
    return "" if context is None else f" of partition {context.partitionId()}"


def _details(error: BaseException) -> str:
    """The frames of the error and of its causes, indented."""
    lines = _frames(error)
    for _ in range(_CAUSES):
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None:
            break
        error = cause
        lines += [f"caused by {describe(error)}", *_frames(error)]
    return "".join(f"\n{_INDENT}{line}" for line in lines)


def _frames(error: BaseException) -> list[str]:
    """Where it happened in code that is neither ours nor a library's; else its last frame, wherever that is."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OWN_PACKAGES)
    ]
    users = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    shown = users[-_FRAMES:] or frames[-1:]
    return [line for frame in traceback.format_list(shown) for line in frame.rstrip("\n").splitlines()]
