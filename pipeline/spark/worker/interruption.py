"""Ctrl-C in a program that waits for Spark cancels its jobs, and with them the calls in flight.

PySpark means to do so: its handler of SIGINT calls `cancelAllJobs`. But the handler runs on the main thread, which is
in the middle of a command to the JVM, and a connection carries one command at a time. So the command fails, and the
jobs go on for as long as the program does. The handler here sends it from a thread of its own, which has a connection
of its own. Spark Connect needs nothing: its client interrupts the operation that it waits for.

Py4J then gives up the connection that was interrupted, and asks the JVM to close it. The JVM (py4j 0.10.9.9) closes
every connection of the program instead, at some later moment. A command that just opens one fails with "Answer from
Java side is empty": often a command of PySpark, in place of the KeyboardInterrupt. So the handler closes the connection
itself, and Py4J has nothing to ask.
"""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any, Final, NoReturn

from pyspark.sql import SparkSession

from pipeline.spark.shipping import is_remote

log: logging.Logger = logging.getLogger(__name__)

_CANCEL_TIMEOUT_S: Final = 5.0


def cancel_jobs_on_interrupt(spark: SparkSession) -> None:
    """Make Ctrl-C cancel all jobs of `spark`, then raise KeyboardInterrupt; repeating it does nothing.

    Takes the place of PySpark's handler of SIGINT, or of Python's. Another one stays: it is the program's. Does nothing
    on other threads than the main one, which alone may set handlers, and over Spark Connect.
    """
    if is_remote(spark) or threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGINT)
    is_ours = isinstance(handler, _Cancellation)  # perhaps for a context that was stopped
    if is_ours or handler is signal.default_int_handler or _is_of_pyspark(handler):
        signal.signal(signal.SIGINT, _Cancellation(spark.sparkContext))


def _is_of_pyspark(handler: Any) -> bool:
    return str(getattr(handler, "__module__", "")).partition(".")[0] == "pyspark"


class _Cancellation:
    """The handler of SIGINT, which runs on the main thread."""

    def __init__(self, context: Any) -> None:
        self._context = context  # never changes
        self._is_cancelling = False  # main thread only, also by a handler that interrupts another

    def __call__(self, number: int, frame: FrameType | None) -> NoReturn:
        if not self._is_cancelling:  # a second Ctrl-C ends the wait
            self._is_cancelling = True
            try:
                thread = threading.Thread(target=self._cancel, name="cancel jobs", daemon=True)
                thread.start()
                thread.join(_CANCEL_TIMEOUT_S)
            finally:
                self._is_cancelling = False
        self._close_connection()
        raise KeyboardInterrupt

    def _cancel(self) -> None:
        try:
            self._context.cancelAllJobs()
        except Exception as error:  # Spark has stopped, or the JVM is gone
            log.debug("the jobs were not cancelled: %s", error)

    def _close_connection(self) -> None:
        """Close the main thread's connection; the next command opens another."""
        try:
            connection = self._context._gateway._gateway_client.get_thread_connection()
            if connection is not None:
                connection.close()
        except Exception as error:  # Spark has stopped, or its threads share connections (PYSPARK_PIN_THREAD=false)
            log.debug("the connection to the JVM was not closed: %s", error)
