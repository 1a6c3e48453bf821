"""The failure of a task in a few lines: the row, the cause and the user's own frames, from the worker to the driver.

Spark sends only the text of an exception to the driver, wrapped in other texts. So the text is made to be found again:
the name of the class, then one line with the failure, then indented lines with the details.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType, NoneType
from typing import Final, NoReturn

from pyspark import TaskContext

from dispatcher.util.functions import require_kind
from pipeline.spark.errors import PACKAGE_ADVICE, PYTHON_ADVICE, AsyncIOError
from pipeline.streaming.errors import AsyncOperatorError, describe, quoted

_INDENT: Final = "  "
_FRAMES: Final = 8
_CAUSES: Final = 4
_OWN_PACKAGES: Final = ("dispatcher", "statemachines", "pipeline")
_LIBRARIES: Final = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_ZIPPED_LIBRARIES: Final = ("pyspark", "py4j")
"""An executor imports them from zips of its Spark, which are in no folder of libraries."""

_WHERE: Final = re.compile(r"\((\S+) executor \S+\)")
_LACKS: Final = re.compile(r"^RuntimeError: (an executor on .+ lacks the package .+)$", re.MULTILINE)
_NO_PYTHON: Final = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_PYTHON: Final = re.compile(r"Python in worker has different version: (\S+) than that in driver: ([\w.]+)")
_NO_PACKAGE: Final = re.compile(
    r"^\s*(?:\S+: No module named '?(?P<name>[\w.]+)'?|.*\b(?P<old>\w+ >= \S+) must be installed; however,.*)$",
    re.MULTILINE,
)


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


def cache_failure(operator: str, error: BaseException) -> AsyncTaskError:
    """The error to raise in the worker for a cache of results that cannot be used."""
    return AsyncTaskError(f"{operator}: {describe(error)}")


def raise_in_worker(error: AsyncTaskError) -> NoReturn:
    """Raise `error` so that Spark shows only its text.

    Spark prints the stack frames of its own worker above the text. A worker, which ends with this error, turns them off
    for its process; the text has the frames that matter. Lone surrogates in the text, as in a file's name, become
    escapes: Spark's worker cannot send them, and the job would wait for it forever.
    """
    if TaskContext.get() is not None:
        sys.tracebacklimit = 0
    raise AsyncTaskError(str(error).encode(errors="backslashreplace").decode()) from None


def task_failure(error: BaseException | None) -> str | None:
    """Return the text of the task's failure in an error from Spark, or None if the error has another cause.

    For errors of actions, of streaming queries (also `query.exception()`) and of Spark Connect. An executor that lacks
    a suitable Python or a package is also such a failure.
    """
    require_kind(error, "error", BaseException, NoneType)
    return _row_failure(error) or executor_failure(error)


def executor_failure(error: BaseException | None) -> str | None:
    """One line about what executors lack in an error that Spark raised: a Python, its version or a package."""
    for each in causes(error):
        # Newer releases of Spark leave the executor out of the text, but not out of the stack trace.
        text = f"{each}\n{getattr(each, '_stackTrace', None) or ''}"
        if found := _LACKS.search(text):
            return found[1]
        where = _WHERE.search(text)
        executor = f"an executor on {where[1]}" if where else "an executor"
        if found := _NO_PYTHON.search(text):
            return f"{executor} has no Python at {found[1]}. {PYTHON_ADVICE}"
        if found := _OTHER_PYTHON.search(text):
            return f"{executor} runs Python {found[1]}, and this process {found[2]}. {PYTHON_ADVICE}"
        if found := _NO_PACKAGE.search(text):
            return f"the Python of {executor} lacks the package {found['name'] or found['old']}. {PACKAGE_ADVICE}"
    return None


def lacks_packages(where: str, python: str, version: str, packages: Sequence[str]) -> str:
    """The line about a Python that lacks packages."""
    what = "the package" if len(packages) == 1 else "the packages"
    return f"{where} runs {python} (Python {version}), which lacks {what} {', '.join(packages)}. {PACKAGE_ADVICE}"


def _row_failure(error: BaseException | None) -> str | None:
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
    # By module and not by file: where the packages are shipped, their files are in a zip.
    walked = [(_package(frame), frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    others = [(package, (frame, line)) for package, frame, line in walked if package not in _OWN_PACKAGES]
    users = [
        at
        for package, at in others
        if package not in _ZIPPED_LIBRARIES and not at[0].f_code.co_filename.startswith(_LIBRARIES)
    ]
    shown = traceback.StackSummary.extract(users[-_FRAMES:] or [at for _, at in others[-1:]])
    return [line for frame in traceback.format_list(shown) for line in frame.rstrip("\n").splitlines()]


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
