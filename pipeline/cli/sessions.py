"""A command's Spark session."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ENDING_S = 1.0
_STDERR = 2


@contextmanager
def open_spark(
    master: str, *, long_run: bool = False, meanwhile: Callable[[], object] = lambda: None
) -> Iterator[SparkSession]:
    """Start Spark, and stop it at the end. Blocks for the seconds that both take. Main thread.

    `meanwhile`: runs on this thread while Spark starts, as imports can.

    Raises:
        SparkUnavailableError: as `spark_session`.
    """
    from pipeline.spark import spark_session

    started: Future[SparkSession] = Future()

    def start() -> None:
        try:
            started.set_result(spark_session(master, long_run=long_run))
        except BaseException as error:
            started.set_exception(error)

    # A thread of its own: on the main thread, Spark would replace the command's handler of SIGINT.
    thread = Thread(target=start, name="start-of-spark", daemon=True)
    with _passed_on_errors():
        thread.start()
        try:
            meanwhile()
            session = started.result()
        finally:
            thread.join(_ENDING_S)  # interrupted: it removes its temporary files once its JVM has ended
    with session as entered:
        yield entered


@contextmanager
def _passed_on_errors() -> Iterator[None]:
    """Processes started meanwhile write their standard error to a pipe, and a thread passes it on to this process's.

    An interrupted command silences its own standard error, and so theirs: Spark logs each task that its end breaks off.
    """
    try:
        behind = os.dup(_STDERR)
    except OSError:  # standard error is closed
        yield
        return
    read_end, write_end = os.pipe()
    os.dup2(write_end, _STDERR)
    places = [behind]  # the last is where to write
    Thread(target=_pass_on, args=(read_end, places), name="stderr-of-spark", daemon=True).start()
    try:
        yield
    finally:
        if os.path.samestat(os.fstat(_STDERR), os.fstat(write_end)):  # otherwise it was silenced
            os.dup2(behind, _STDERR)
        places.append(_STDERR)
        os.close(write_end)


def _pass_on(read_end: int, places: list[int]) -> None:
    """Until the last writer has closed the pipe."""
    while text := os.read(read_end, 1 << 16):
        with contextlib.suppress(OSError):
            os.write(places[-1], text)
    os.close(read_end)
