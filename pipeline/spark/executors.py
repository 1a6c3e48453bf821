"""Checks a cluster's executors before a command's jobs: their Python, its packages, and the paths they are to share.

Without this check, each of these is found minutes later, by tasks that fail four times each, in a hundred lines of
stack traces.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from dispatcher.util.functions import require_methods
from pipeline.spark.errors import PYTHON_ADVICE, ExecutorError
from pipeline.spark.failures import executor_failure, lacks_packages
from pipeline.spark.observed_calls import functions_for
from pipeline.spark.shipping import EXECUTOR_PACKAGES, is_remote, runs_on_executors, ship_packages

log: logging.Logger = logging.getLogger(__name__)

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_MOST_TASKS: Final = 1_000
_ROUNDS: Final = 3
"""Executors register while the first tasks run; the next round reaches them."""
_PATIENCE_S: Final = 20.0
_PYTHON_TIMEOUT_S: Final = 60.0


class _Seen(NamedTuple):
    """What a task found where it ran."""

    node: str
    python: str
    version: str
    lacks: list[str]
    unseen: list[str]
    unwritable: list[str]


def prepare_executors(
    spark: SparkSession, *, reads: Iterable[Path] = (), writes: Path | None = None, reads_journal: bool = False
) -> None:
    """Send the packages, check what the executors have, and set the number of shuffle partitions to their cores.

    Does nothing for a local master. Otherwise this blocks for a few small jobs, and for as long as the cluster has no
    executor. If the session's configuration sets the number of shuffle partitions, that stays.

    `reads`: the files and folders read by tasks.
    `writes`: the output folder of this process and the tasks, created if necessary.
    `reads_journal`: the jobs use the format `dispatcher_journal`, which also runs on the driver's machine, in the
        Python that PYSPARK_PYTHON names.

    Raises:
        ExecutorError: an executor lacks a Python, a package or a path.
    """
    require_methods(spark, "spark", "a SparkSession", "createDataFrame")
    if not runs_on_executors(spark):
        return
    ship_packages(spark)
    if reads_journal and not is_remote(spark):
        _check_planner()
    with _marked(writes) as marks, _impatience(spark):
        cores = 0
        for _ in range(_ROUNDS):
            known, cores = cores, registered_cores(spark)
            if cores <= known:
                break
            for seen in _look(spark, cores, [str(path.absolute()) for path in reads], marks):
                _require(seen)
    if _PARTITIONS not in spark.conf.getAll:
        spark.conf.set(_PARTITIONS, str(max(2, cores)))


def registered_cores(spark: SparkSession) -> int:
    """The cores of the executors that have registered: Spark splits a range into as many partitions. Runs a small job.

    Where the configuration sets `spark.default.parallelism`, it is that number.
    """
    partitions = spark.range(1 << 16).selectExpr("spark_partition_id() AS number")
    [[last]] = partitions.groupBy().max("number").collect()
    return int(last) + 1


def _look(spark: SparkSession, tasks: int, reads: Sequence[str], writes: Sequence[str]) -> list[_Seen]:
    numbers = spark.range(0, min(tasks, _MOST_TASKS), 1, min(tasks, _MOST_TASKS))
    # Not by Arrow, which an executor may lack.
    look = functions_for(numbers).udf(_observer(list(EXECUTOR_PACKAGES), reads, writes), "string", useArrow=False)
    try:
        rows = numbers.select(look("id")).distinct().collect()
    except Exception as error:
        if (lack := executor_failure(error)) is not None:
            raise ExecutorError(lack) from error
        raise
    return [_Seen(*json.loads(row[0])) for row in rows]


def _observer(packages: Sequence[str], reads: Sequence[str], writes: Sequence[str]) -> Callable[[Any], str]:
    """A function for tasks. It needs only Python's own library, because it looks for everything else."""

    def look(_: Any) -> str:
        import importlib.util
        import json
        import os
        import platform
        import sys

        lacks = [name for name in packages if importlib.util.find_spec(name) is None]
        unseen = [path for path in [*reads, *writes] if not os.access(path, os.R_OK)]
        unwritable = [path for path in writes if path not in unseen and not os.access(path, os.W_OK)]
        return json.dumps([platform.node(), sys.executable, platform.python_version(), lacks, unseen, unwritable])

    return look


def _require(seen: _Seen) -> None:
    where = f"an executor on {seen.node}"
    if seen.lacks:
        raise ExecutorError(lacks_packages(where, seen.python, seen.version, seen.lacks))
    if seen.unseen:
        raise ExecutorError(
            f"{seen.unseen[0]}: {where} cannot read this path. Executors and this process must see journals, logs and "
            "the report's folder under the same paths: put them on a file system that all of them mount."
        )
    if seen.unwritable:
        raise ExecutorError(
            f"{seen.unwritable[0]}: {where} cannot write to this folder, where tasks write the report's tables. "
            "Let the executors' user write there, or name another folder."
        )


def _check_planner() -> None:
    """Check the Python that Spark runs on this machine to plan the reading of a journal."""
    python = os.environ.get("PYSPARK_PYTHON", "python3")
    found = shutil.which(python)
    if found is None:
        raise ExecutorError(
            f"this machine has no Python at {python}, where Spark needs one, too. Set PYSPARK_PYTHON to a path that "
            "leads to a Python here and on all executors."
        )
    if Path(found).resolve() == Path(sys.executable).resolve() and Path(found).parent == Path(sys.executable).parent:
        return
    names = ", ".join(map(repr, EXECUTOR_PACKAGES))
    code = (
        "import importlib.util, json, platform, sys; print(json.dumps([platform.node(), sys.executable, "
        f"platform.python_version(), [name for name in ({names}) if importlib.util.find_spec(name) is None], [], []]))"
    )
    try:
        answer = subprocess.run(
            [found, "-c", code], capture_output=True, text=True, timeout=_PYTHON_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ExecutorError(f"{found}: this Python does not run ({error}). {PYTHON_ADVICE}") from error
    seen = _Seen(*json.loads(answer.stdout))
    if seen.lacks:
        raise ExecutorError(lacks_packages(f"this machine ({seen.node})", seen.python, seen.version, seen.lacks))


@contextmanager
def _marked(folder: Path | None) -> Iterator[list[str]]:
    """The folder, and a file in it that only exists in this very folder: another machine may have one of its name."""
    if folder is None:
        yield []
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark = folder.absolute() / f".seen-by-executors-{uuid.uuid4().hex}"
        mark.touch()
    except OSError as error:
        raise ExecutorError(f"{folder}: cannot be written ({error.strerror}). Name another folder.") from error
    try:
        yield [str(mark.parent), str(mark)]
    finally:
        mark.unlink(missing_ok=True)


@contextmanager
def _impatience(spark: SparkSession) -> Iterator[None]:
    """Say after a while what is waited for: Spark itself says it at a level that the command does not show."""
    master = spark.conf.get("spark.master", "Spark")
    warning = "%s: still waiting for executors. Has the cluster workers with a free core and enough free memory?"
    timer = threading.Timer(_PATIENCE_S, log.warning, (warning, master))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
