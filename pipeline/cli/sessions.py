"""A command's Spark session, and where it may run. Importing this does not import pyspark."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dispatcher.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ENDING_S = 1.0
_STDERR = 2
_MASTER: Final = re.compile(
    r"local(\[(\*|[1-9][0-9]{0,3})(, ?[0-9]{1,9})?\])?"
    r"|local-cluster\[[0-9]{1,9}, ?[0-9]{1,9}, ?[0-9]{1,9}\]"
    r"|spark://[^\s/,:]+:[0-9]{1,5}(,[^\s/,:]+:[0-9]{1,5})*"
    r"|yarn"
    r"|k8s://[^\s]+"
    r"|sc://[^\s/:;]+(:[0-9]{1,5})?(/.*)?"
)


def check_master(master: str) -> str:
    """The master, if Spark could know it; it is not asked. For use as a callback of Typer.

    Raises:
        ConfigError: Spark knows no such master: it would say so with a Java stack after seconds, or after the replay.
    """
    if _MASTER.fullmatch(master) is None:
        raise ConfigError(
            f"--master {master!r}: not a place where Spark runs; give local[*], local[4], spark://host:7077, yarn, "
            "k8s://host:port or sc://host"
        )
    return master


Master = Annotated[
    str, typer.Option(help="Where Spark runs: local[*], a cluster, or sc://host.", callback=check_master)
]


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
