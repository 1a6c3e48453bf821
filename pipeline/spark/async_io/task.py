"""The work of an asynchronous operator in each Spark task, and how it gets there.

A DataFrame's operator and a column each make an AsyncTask, and `for_workers` makes the function that Spark calls with
the batches of a task. The worker's main thread reads and writes batches; the calls run on threads of the operator.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias, get_args

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from dispatcher.errors import InvalidTypeError, InvalidValueError
from pipeline.spark.async_io.checked_calls import checked_function, checked_options
from pipeline.spark.async_io.job_limits import share_of_task
from pipeline.spark.async_io.results import OutputColumns, ResultWriter
from pipeline.spark.async_io.rows import InputRows, require_distinct
from pipeline.spark.async_io.sizes import limited
from pipeline.spark.async_io.spark_types import ExtraKeys, row_check, time_zone, usual_rows_first
from pipeline.spark.async_io.structs import Check
from pipeline.spark.failures import cache_failure, open_failure, raise_in_worker, row_failure
from pipeline.spark.observed_calls import TaskReport
from pipeline.spark.result_caches import with_cache
from pipeline.spark.shipping import on_executors, ship_packages
from pipeline.spark.worker.hosts import HostIdentity, WorkerHosts, worker_hosts
from pipeline.spark.worker.interruption import cancel_jobs_on_interrupt
from pipeline.spark.worker.output import WorkerOutput, worker_output
from pipeline.spark.worker.process import freeze_modules, leave_worker
from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.functions import AnyFunction, name_of
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.hosts.choice import host_for, make_host
from pipeline.streaming.calls.room import PER_CALL
from pipeline.streaming.errors import AsyncOperatorError, ResultCacheError
from pipeline.streaming.number_checks import require_number
from pipeline.streaming.options import AsyncOptions
from pipeline.streaming.pace import ReaderGoneError, ReaderPace
from pipeline.streaming.wait import wait_in_chunks

_RESULTS_AT_ONCE: Final = 256
"""Results handed from the task's thread to the main thread at once; about three times as many are buffered."""
_REPORT_EVERY_S: Final = 1.0
_OUR_CODE: Final = ("pipeline.spark.", "pipeline.streaming.")
_ROWS_PER_TAKEN: Final = 4
"""Rows that an ordered wait takes in, while its oldest call is slow, for each that the reader has taken."""


@dataclass(frozen=True, kw_only=True)
class AsyncTask:
    """The work of each task, from rows to Arrow batches. Pickles."""

    operator: str
    function: AnyFunction[Any, Any]
    options: AsyncOptions
    result_schema: T.StructType
    columns: OutputColumns
    time_zone: str
    idle_s: float
    extra: ExtraKeys = "refuse"
    none_is_row: bool = False
    identity: HostIdentity = field(default=HostIdentity("", ""), compare=False)
    """Whose host its tasks share in a worker. Set as the task is sent there."""

    def run(
        self, rows: Iterable[Sequence[Any]], hosts: WorkerHosts, output: WorkerOutput | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The output of one task. The calling thread reads `rows` and yields the output, and blocks for both.

        `rows`: lists of rows; InputRows if the output has columns of the input.
        `output`: where the batches are written; None: they wait in its buffer, and more rows are called for than the
        reader asks for.

        Raises:
            ReaderGoneError: the reader of `output` has ended. The calls in flight were given up.
        """
        zone = time_zone(self.time_zone)
        check = self.check(zone)
        options = checked_options(self.options, check)
        metrics = CallMetrics()
        metrics.lost_attempts = _earlier_attempts()
        metrics.unpaced_tasks = int(output is None)
        report = TaskReport(metrics)
        source = rows if isinstance(rows, InputRows) else None
        writer = self.writer(source)
        with hosts.lease(self.identity, partial(self._open_host, check, options), self.idle_s) as host:
            pace = None if output is None else _pace(options, host, output)
            results: Any = wait_in_chunks(
                rows,
                host,
                options,
                max_chunk=_RESULTS_AT_ONCE,
                metrics=metrics,
                pace=pace,
                without_results=None if source is None else source.without_results,
            )
            reported_s = time.monotonic()
            with closing(results):
                try:
                    if self.columns.has_metrics:
                        yield writer.metrics_batch(report.take())  # a task that ends early is known to have started
                    for batch in writer.batches(results, pace):
                        yield batch
                        if self.columns.has_metrics and time.monotonic() - reported_s >= _REPORT_EVERY_S:
                            reported_s = time.monotonic()
                            yield writer.metrics_batch(report.take())
                        if output is not None and pace is not None:
                            output.flush()
                            pace.has_sent(writer.results_in_batch)
                    if host.result_session is not None:
                        host.result_session.flush()
                except AsyncOperatorError as error:
                    raise_in_worker(row_failure(self.operator, self.of_row(error)))
                except ResultCacheError as error:
                    raise_in_worker(cache_failure(self.operator, error))
            if self.columns.has_metrics:
                yield writer.metrics_batch(report.take(is_last=True))

    def check(self, zone: dt.tzinfo) -> Check:
        check = row_check(self.result_schema, zone, self.extra, none_is_row=self.none_is_row)
        return usual_rows_first(limited(check, self.result_schema), self.result_schema)

    def writer(self, source: InputRows | None) -> ResultWriter:
        return ResultWriter(self.columns, source)

    def of_row(self, error: AsyncOperatorError) -> AsyncOperatorError:
        """The error with the row that has failed."""
        return error

    def _open_host(self, check: Check, options: AsyncOptions) -> CallHost:
        function = checked_function(self.function, check, self.options.retry, none_is_row=self.none_is_row)
        function = with_cache(options.cache, function, options.enabled_retry, self.result_schema)
        host = make_host(function, pool_size=options.threads, max_calls=options.most_calls, name=name_of(self.function))
        try:
            host.start()
        except BaseException as error:
            raise_in_worker(open_failure(self.operator, error))
        return host


CallFor: TypeAlias = Callable[[Iterable[Sequence[Any]]], Iterator[pa.RecordBatch]]
"""`AsyncTask.run` in a worker: takes rows and gives the results."""


def for_workers(
    task: AsyncTask,
    spark: SparkSession,
    df: DataFrame | None,
    convert: Callable[[CallFor, Iterator[Any]], Iterator[Any]],
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function that Spark calls in each task, and the packages that it needs on the executors of `spark`.

    `convert` reads rows of Spark's batches, has them called for, and gives Spark the results in the form that it takes.
    `df`: the rows to call for; None if they are not known.

    Raises:
        ValueError, TypeError: what every task would raise, for an option or a name; or the function does not pickle.
    """
    if task.extra not in get_args(ExtraKeys):
        raise InvalidValueError(f'extra is {task.extra!r}; choose "refuse" or "ignore"')
    require_number("idle_timeout", task.idle_s, least=0)
    host_for(task.function, task.options)
    time_zone(task.time_zone)
    require_distinct(task.columns.task_schema())
    share = share_of_task(task.options.rate_limit, spark, df, task.operator)
    sent: Any = _Sent(replace(task, options=replace(task.options, rate_limit=share)))  # in a worker, the task itself

    def run_task(batches: Iterator[Any]) -> Iterator[Any]:
        try:
            with worker_output() as output:
                yield from convert(partial(sent.run, hosts=worker_hosts(), output=output), batches)
        except ReaderGoneError:
            leave_worker()

    ship_packages(spark)
    cancel_jobs_on_interrupt(spark)
    return on_executors(run_task)


def zone_of_session(spark: SparkSession) -> str:
    return spark.conf.get("spark.sql.session.timeZone") or "UTC"


class _Sent:
    """An AsyncTask on its way to the workers. Unpickles as the task, after all modules that this project needs.

    Raises:
        TypeError: it does not pickle. Spark would also fail, but without naming the operator, and with Spark Connect
            only at the first action.
    """

    def __init__(self, task: AsyncTask) -> None:
        try:
            self._pickled: bytes = cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise InvalidTypeError(
                f"{task.operator}: the function, or what its options refer to, cannot be sent to the workers: {error}. "
                "Create connections, locks and the like in open(), and do not refer to the SparkSession."
            ) from error
        # An operator that is built again, as in each micro-batch of foreachBatch, has the same bytes.
        digest = hashlib.sha256(self._pickled).hexdigest()
        self._identity = HostIdentity(digest, f"{task.operator} {_place_of_call()}")

    def __reduce__(self) -> tuple[Callable[[bytes, HostIdentity], AsyncTask], tuple[bytes, HostIdentity]]:
        return _received, (self._pickled, self._identity)


def _received(pickled: bytes, identity: HostIdentity) -> AsyncTask:
    freeze_modules()
    task: AsyncTask = pickle.loads(pickled)
    return replace(task, identity=identity)


def _place_of_call() -> str:
    """The line of the user's code that builds the operator."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OUR_CODE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _pace(options: AsyncOptions, host: CallHost, output: WorkerOutput) -> ReaderPace:
    calls = options.first_records(host.is_batch)
    at_a_time = min(calls, options.records_for_calls(host.is_batch))
    if not options.may_grow:
        return ReaderPace(at_a_time, calls, output)
    # Finished rows of an ordered wait lie behind slow ones, and more of them the longer its queue grows.
    return ReaderPace(at_a_time, calls * PER_CALL, output, per_taken=_ROWS_PER_TAKEN)


def _earlier_attempts() -> int:
    """The attempts of this task that preceded this one. Spark discards what they have counted."""
    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()
