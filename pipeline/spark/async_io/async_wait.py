"""Async I/O inside Spark: a function that waits for a service is called for many rows of a task at once.

`ordered_wait` and `unordered_wait` take a DataFrame, batch or streaming, and give one. Each task runs the same operator
as `pipeline.streaming` does, on threads of its own: the worker's main thread only reads Arrow batches and writes them.

- The calls of a task are under way across its input batches, and have all ended when its partition ends. A failure
  gives them up, and so does a `limit`: as soon as there is another batch to hand over, or after `timeout`.
- The function is pickled with the query. In a worker it is opened once, by the first task that needs it, kept for the
  tasks and micro-batches that follow there, and closed when no task has used it for `idle_timeout` seconds, when
  its task fails, or when the worker ends. A worker that is killed closes nothing.
- Limits hold for a task or for a worker, see `pipeline.streaming.RateLimit`; a limit over the whole job is divided
  by the tasks that run at once: `rate_limit=RateLimit(1000).split(executor cores / spark.task.cpus)`.
- A task that Spark runs again makes its calls again. Nothing is lost; the service may see a row more than once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeAlias, Unpack

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pipeline.spark.async_io.arrow_types import require_supported
from pipeline.spark.async_io.checked_calls import checked_function, checked_options
from pipeline.spark.async_io.column_names import require_distinct, with_plain_names
from pipeline.spark.async_io.result_values import Check, row_check
from pipeline.spark.async_io.results import OutputColumns, ResultWriter
from pipeline.spark.async_io.rows import RowReader
from pipeline.spark.async_io.time_zones import time_zone
from pipeline.spark.async_io.workers import WorkerHosts, worker_hosts
from pipeline.spark.call_metrics import METRICS_COLUMN, METRICS_TYPE, TaskReport, observe_calls
from pipeline.spark.failures import open_failure, raise_in_worker, row_failure
from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.functions import AnyFunction, name_of
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.hosts.choice import host_for, make_host
from pipeline.streaming.errors import AsyncOperatorError, CapturedError
from pipeline.streaming.options import AsyncOptions, WaitOptions, takes_options
from pipeline.streaming.wait import timeout_to_ms, wait_in_chunks

DedupeBy: TypeAlias = str | Sequence[str] | Callable[[Any], Any]

_RESULTS_AT_ONCE: Final = 256
"""Results that go from the task's thread to the main thread at once; about three times as many are between the two."""
_REPORT_EVERY_S: Final = 1.0


@takes_options(WaitOptions)
def ordered_wait(
    df: DataFrame,
    function: AnyFunction[Any, Any],
    schema: T.StructType | str,
    *,
    timeout: float,
    dedupe_by: DedupeBy | None = None,
    keep_input: bool = False,
    error_column: str = "error",
    metrics: Any = None,
    idle_timeout: float = 30.0,
    **options: Unpack[WaitOptions],
) -> DataFrame:
    """Call `function` for each row, up to `capacity` at a time in each task; results come in the order of the rows.

    In:  any DataFrame. `function` is given each row as a Row; see `pipeline.spark.async_io.rows` for the values in it.
    Out: the columns of `schema` (a StructType or DDL), one row for each result: the function returns a list of them,
         or a single one. A Row with names or a dict goes by name, any other tuple by position. What does not fit the
         schema is that call's error. With on_error="capture" also the column `error_column`: null, or for a row whose
         call has failed a struct of input (the row), error_class string, message string, attempts int and
         time_spent_ms double; then the other columns are null, and all are nullable. The rows where it is not null
         are the dead letters. A stream's watermark goes on with its column where that is the input's, by
         `keep_input` or in a `schema` made of `df.schema`; else set one on the output.

    `function`: an AsyncFunction, an `async def`, or a blocking function, which is called on `pool_size` threads.
    `timeout`: seconds for a row with all its attempts.
    `dedupe_by`: a column, some columns or a function of the row: rows of the same key share one call and its results,
        which are then to be made of the key alone; `keep_input` puts each row's own columns before them.
    `options`: see `pipeline.streaming.AsyncOptions`; a fourth of a task's `capacity` is read ahead.
    `keep_input`: the columns of `df` come before those of `schema`, with the values of the row that was called for.
    `metrics`: an Observation, for batch queries, or a name, under which the streaming progress has them; to be read by
        `pipeline.spark.call_metrics`.

    Raises:
        ValueError, TypeError: an option, or a name or a type in one of the schemas, is not possible, or `function` does
            not pickle.
    """
    given = AsyncOptions(timeout_ms=timeout_to_ms(timeout), dedupe_by=_key_function(df, dedupe_by), **options)
    return _wait(df, function, schema, given, keep_input, error_column, metrics, idle_timeout)


@takes_options(WaitOptions)
def unordered_wait(
    df: DataFrame,
    function: AnyFunction[Any, Any],
    schema: T.StructType | str,
    *,
    timeout: float,
    dedupe_by: DedupeBy | None = None,
    keep_input: bool = False,
    error_column: str = "error",
    metrics: Any = None,
    idle_timeout: float = 30.0,
    **options: Unpack[WaitOptions],
) -> DataFrame:
    """As `ordered_wait`, but results come as the calls of a task end: one slow call holds up no other."""
    given = AsyncOptions(
        timeout_ms=timeout_to_ms(timeout),
        output_mode="unordered",
        dedupe_by=_key_function(df, dedupe_by),
        **options,
    )
    return _wait(df, function, schema, given, keep_input, error_column, metrics, idle_timeout)


def _wait(
    df: DataFrame,
    function: AnyFunction[Any, Any],
    schema: T.StructType | str,
    options: AsyncOptions,
    keep_input: bool,
    error_column: str,
    metrics: Any,
    idle_timeout: float,
) -> DataFrame:
    result_schema = schema if isinstance(schema, T.StructType) else df.sparkSession.createDataFrame([], schema).schema
    _check(df, function, result_schema, options, keep_input, error_column, metrics, idle_timeout)
    columns = OutputColumns(
        T.StructType(df.schema.fields + result_schema.fields) if keep_input else result_schema,
        df.schema,
        error_name=error_column if options.on_error == "capture" else None,
        metrics_name=METRICS_COLUMN if metrics is not None else None,
        metrics_type=METRICS_TYPE if metrics is not None else None,
    )
    task = AsyncWaitTask(
        key=str(uuid.uuid4()),
        operator=f"{options.output_mode}_wait({name_of(function)})",
        function=function,
        options=options,
        result_schema=result_schema,
        keep_input=keep_input,
        columns=columns,
        time_zone=df.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC",
        idle_s=idle_timeout,
    )
    time_zone(task.time_zone)
    require_distinct(columns.task_schema())
    _require_picklable(task)

    def async_wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task.run(batches, worker_hosts())

    results = with_plain_names(df).mapInArrow(async_wait, columns.task_schema())
    return results if metrics is None else observe_calls(results, metrics)


def _check(
    df: DataFrame,
    function: AnyFunction[Any, Any],
    schema: T.StructType,
    options: AsyncOptions,
    keep_input: bool,
    error_column: str,
    metrics: Any,
    idle_timeout: float,
) -> None:
    """Refuse on the driver what every task would refuse."""
    require_supported(df.schema, "the DataFrame")
    require_supported(schema, "the schema of the results")
    taken = {error_column.lower()} if options.on_error == "capture" else set()
    if metrics is not None:
        taken.add(METRICS_COLUMN)
    if keep_input and (both := set(df.columns) & set(schema.names)):
        raise ValueError(
            f"keep_input puts the columns of the DataFrame before those of the results, and both have {min(both)}"
        )
    names = [*schema.names, *(df.columns if keep_input else ())]
    if clashes := [name for name in names if name.lower() in taken]:
        raise ValueError(
            f"the schema of the results has a column {clashes[0]}; rename it, or choose another error_column"
        )
    if metrics is not None and not isinstance(metrics, str) and df.isStreaming:
        raise ValueError("metrics is an Observation, which is for batch queries; give a name for that of a stream")
    if not idle_timeout >= 0:
        raise ValueError(f"idle_timeout is {idle_timeout}; a function is kept open for 0 seconds or more")
    host_for(function, options)


def _require_picklable(task: AsyncWaitTask) -> None:
    """Spark would refuse it too, with Spark Connect not before the first action, but not say whose it is."""
    try:
        cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise TypeError(
            f"{task.operator}: the function, or what its options refer to, cannot be sent to the workers: {error}. "
            "Make connections, locks and the like in open(), and leave the SparkSession out."
        ) from error


def _key_function(df: DataFrame, dedupe_by: DedupeBy | None) -> Callable[[Any], Any] | None:
    if dedupe_by is None or not isinstance(dedupe_by, str | Sequence):
        return dedupe_by
    names = [dedupe_by] if isinstance(dedupe_by, str) else list(dedupe_by)
    if unknown := [name for name in names if name not in df.columns]:
        raise ValueError(f"dedupe_by names {', '.join(unknown)}; the columns are {', '.join(df.columns)}")
    return itemgetter(*(df.columns.index(name) for name in names))


def _with_input(check_input: Check, row: Any, results: Sequence[Any]) -> list[Any]:
    """Results behind the columns of the row that they are for; what was captured has the row in it."""
    values = check_input(row)
    return [result if type(result) is CapturedError else values + result for result in results]


@dataclass(frozen=True, kw_only=True)
class AsyncWaitTask:
    """What runs in each task: Arrow batches in, Arrow batches out. Pickles."""

    key: str
    """The same in all tasks of one operator, and nowhere else: by it they find the host in their worker."""
    operator: str
    function: AnyFunction[Any, Any]
    options: AsyncOptions
    result_schema: T.StructType
    keep_input: bool
    columns: OutputColumns
    time_zone: str
    idle_s: float

    def run(self, batches: Iterator[pa.RecordBatch], hosts: WorkerHosts) -> Iterator[pa.RecordBatch]:
        """The output of one task. The calling thread reads the input and gives the output; it blocks for both."""
        zone = time_zone(self.time_zone)
        check = row_check(self.result_schema, zone)
        options = checked_options(self.options, check)
        if self.keep_input:
            options = replace(options, combine=partial(_with_input, row_check(self.columns.input_schema, zone)))
        metrics = CallMetrics()
        report = TaskReport(metrics)
        writer = ResultWriter(self.columns, zone)
        reader = RowReader(self.columns.input_schema)
        with hosts.lease(self.key, partial(self._open_host, check), self.idle_s) as host:
            results: Any = wait_in_chunks(
                reader.read(batches), host, options, max_chunk=_RESULTS_AT_ONCE, metrics=metrics
            )
            told_s = time.monotonic()
            with closing(results):
                try:
                    for batch in writer.batches(results):
                        yield batch
                        if self._reports and time.monotonic() - told_s >= _REPORT_EVERY_S:
                            told_s = time.monotonic()
                            yield writer.metrics_batch(report.take(is_last=False))
                except AsyncOperatorError as error:
                    raise_in_worker(row_failure(self.operator, error))
            if self._reports:
                yield writer.metrics_batch(report.take(is_last=True))

    @property
    def _reports(self) -> bool:
        return self.columns.metrics_name is not None

    def _open_host(self, check: Check) -> CallHost:
        """A host for this process, started."""
        function = checked_function(self.function, check, self.options.retry)
        host = make_host(
            function, pool_size=self.options.pool_size, max_calls=self.options.capacity, name=name_of(self.function)
        )
        try:
            host.start()
        except BaseException as error:
            raise_in_worker(open_failure(self.operator, error))
        return host
