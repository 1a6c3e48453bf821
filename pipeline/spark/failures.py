"""The failure of a task in a few lines: the row, the cause and the user's own frames, from the worker to the driver.

Spark sends only the text of an exception to the driver, wrapped in other texts. So the text is made to be found again:
the name of the class, then one line with the failure, then indented lines with the details.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Iterator
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
    """A Spark task failed for one row, or could not open the user's function. The driver receives only its text."""


_MARK: Final = f"{AsyncTaskError.__module__}.{AsyncTaskError.__qualname__}: "


def row_failure(operator: str, error: AsyncOperatorError) -> AsyncTaskError:
    """The error to raise in the worker for a row that failed the task."""
    context = TaskContext.get()
    where = "" if context is None else f" of partition {context.partitionId()}"
    tried = f" after {error.attempts} attempts" if error.attempts > 1 else ""
    return AsyncTaskError(
        f"{operator}: the row {quoted(error.value)}{where} has failed{tried}: {describe(error.cause)}"
        + _details(error.cause)
        + f'\n{_INDENT}To continue without such rows, set on_error to "drop", "capture" or a function.'
    )


def open_failure(operator: str, error: BaseException) -> AsyncTaskError:
    """The error to raise in the worker for a function that could not be opened."""
    return AsyncTaskError(f"{operator}: the function could not be opened: {describe(error)}" + _details(error))


def raise_in_worker(error: AsyncTaskError) -> NoReturn:
    """Raise `error` so that Spark shows only its text.

    Spark prints the stack frames of its own worker above the text. A worker, which ends with this error, turns them off
    for its process; the text has the frames that matter.
    """
    if TaskContext.get() is not None:
        sys.tracebacklimit = 0
    raise error from None


def task_failure(error: BaseException | None) -> str | None:
    """The text of the task's failure in an error that Spark raised; None if the error has another cause.

    For errors of actions, of streaming queries (also `query.exception()`) and of Spark Connect.
    """
    for each in causes(error):
        text = str(each)
        start = text.find(_MARK)
        if start >= 0:
            first, *rest = text[start + len(_MARK) :].splitlines()
            lines = [first]
            for line in rest:
                if not line.startswith(_INDENT):
                    break
                lines.append(line)
            return "\n".join(lines)
    return None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, then what caused it, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _details(error: BaseException) -> str:
    lines = _frames(error)
    for _ in range(_CAUSES):
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None:
            break
        error = cause
        lines += [f"caused by {describe(error)}", *_frames(error)]
    return "".join(f"\n{_INDENT}{line}" for line in lines)


def _frames(error: BaseException) -> list[str]:
    """The frames in the user's code, neither this project's nor a library's; without any, the last frame."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OWN_PACKAGES)
    ]
    users = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    shown = users[-_FRAMES:] or frames[-1:]
    return [line for frame in traceback.format_list(shown) for line in frame.rstrip("\n").splitlines()]
