"""Async I/O inside Spark: each task calls a function that waits for a service for many rows concurrently.

`ordered_wait` and `unordered_wait` take a DataFrame, batch or streaming, and return one. Each task runs the operator of
`pipeline.streaming` on its own threads; the worker's main thread only reads and writes Arrow batches.

- Calls overlap across the input batches of a task, and all have ended when its partition ends. A failure abandons them.
  So does a `limit`, at the next output batch or after `timeout`.
- The function is pickled with the query. A worker's first task opens it, and later tasks and micro-batches in that
  worker reuse it. It is closed after `idle_timeout` seconds without a task, when its task fails, or when the worker
  ends. A worker that is killed closes nothing.
- A rate limit is the job's, and each task gets its share: see `pipeline.spark.async_io.job_limits`. With scope "worker"
  or "task" it is that of each worker or task.
- A task that Spark retries repeats its calls: no row is lost, but the service may see a row more than once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeAlias, Unpack, get_args

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pipeline.spark.async_io.checked_calls import checked_function, checked_options
from pipeline.spark.async_io.interruption import cancel_jobs_on_interrupt
from pipeline.spark.async_io.job_limits import share_of_task
from pipeline.spark.async_io.result_schema import SCALAR_COLUMN, accepts_none, schema_from, schema_of
from pipeline.spark.async_io.result_values import Check, ExtraKeys, row_check
from pipeline.spark.async_io.results import OutputColumns, ResultWriter
from pipeline.spark.async_io.rows import read_rows, require_distinct, require_supported, time_zone, with_plain_names
from pipeline.spark.async_io.worker_output import WorkerOutput, worker_output
from pipeline.spark.async_io.workers import WorkerHosts, leave_worker, worker_hosts
from pipeline.spark.call_metrics import METRICS_COLUMN, TaskReport, observe_calls
from pipeline.spark.failures import cache_failure, open_failure, raise_in_worker, row_failure
from pipeline.spark.result_caches import check_cache, with_cache
from pipeline.spark.shipping import on_executors, ship_packages
from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.functions import AnyFunction, name_of
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.hosts.choice import host_for, make_host
from pipeline.streaming.calls.room import PER_CALL
from pipeline.streaming.errors import AsyncOperatorError, CapturedError, ResultCacheError
from pipeline.streaming.number_checks import require_number
from pipeline.streaming.options import AsyncOptions, OutputMode, WaitOptions, takes_options, times_in_ms
from pipeline.streaming.pace import Pace, ReaderGoneError
from pipeline.streaming.wait import wait_in_chunks

ResultSchema: TypeAlias = T.DataType | str | type[Any] | None
"""A StructType, DDL, the type of the only column, or a class with fields; None: what the function declares."""
DedupeBy: TypeAlias = str | Sequence[str] | Callable[[Any], Any]

_RESULTS_AT_ONCE: Final = 256
"""Results handed from the task's thread to the main thread at once; about three times as many are buffered."""
_REPORT_EVERY_S: Final = 1.0
_ROWS_PER_TAKEN: Final = 4
"""Rows that an ordered wait takes in, while its oldest call is slow, for each that the reader has taken."""


class DataFrameOptions(WaitOptions, total=False):
    """What `ordered_wait` and `unordered_wait` of a DataFrame take."""

    dedupe_by: DedupeBy | None
    extra: ExtraKeys
    keep_input: bool
    error_column: str
    metrics: Any
    idle_timeout: float


_takes_options = takes_options(
    DataFrameOptions, extra="refuse", keep_input=False, error_column="error", metrics=None, idle_timeout=30.0
)


@_takes_options
def ordered_wait(
    df: DataFrame,
    function: AnyFunction[Any, Any],
    schema: ResultSchema = None,
    *,
    timeout: float,
    deadline: float | None = None,
    **options: Unpack[DataFrameOptions],
) -> DataFrame:
    """Call `function` for each row, up to `concurrency` at a time in each task; results keep the order of the rows.

    In:  any DataFrame. `function` receives each row as a Row; for its values see `pipeline.spark.async_io.rows`.
    Out: the columns of `schema`, one row per result. The function returns one result or a list. A dict, a Row with
         names, a dataclass or a pydantic model is matched by name, any other tuple by position; any other value is that
         of the only column. A result that does not fit the schema fails its call. on_error="capture" adds the column
         `error_column`, which is null unless the row's call failed. Then it is a struct of input (the row), error_class
         string, message string, attempts int and time_spent_ms double, and the other columns, which all become
         nullable, are null. The rows where it is not null are the dead letters. A stream keeps its watermark if the
         output has the watermark's column of the input, by `keep_input` or in a `schema` made of `df.schema`; otherwise
         set one on the output.

    `function`: an AsyncFunction, an `async def`, or a blocking function, which runs on `pool_size` threads.
    `schema`: a StructType, DDL, or a class: a dataclass, a pydantic model or a TypedDict. None: what the function's
        return type declares, see `pipeline.spark.async_io.result_schema`. A scalar is the column `value`. A function
        whose return type is optional may return None, which is a row of nulls; any other must not.
    `timeout`: seconds for a row, including all its attempts, from the start of its first call.
    `deadline`: seconds for a row from when its task takes it in, including waits for limits and free slots.
    `extra`: "refuse" fails the call of a result with a name that the schema lacks, "ignore" leaves such values out.
    `dedupe_by`: a column, some columns or a function of the row. Rows with the same key share one call and its results,
        which must depend on the key alone; `keep_input` still puts each row's own columns before them.
    `options`: see `pipeline.streaming.AsyncOptions`; a quarter of a task's calls is read ahead.
    `keep_input`: put the columns of the input row before the columns of `schema`.
    `metrics`: for batch queries an Observation, for streams the name of the metrics in the streaming progress; read
        them with `pipeline.spark.call_metrics`.

    Raises:
        ValueError, TypeError: an option, or a name or a type in a schema, is invalid, or `function` does not pickle.
    """
    return _wait("ordered", df, function, schema, timeout, deadline, **options)


@_takes_options
def unordered_wait(
    df: DataFrame,
    function: AnyFunction[Any, Any],
    schema: ResultSchema = None,
    *,
    timeout: float,
    deadline: float | None = None,
    **options: Unpack[DataFrameOptions],
) -> DataFrame:
    """Like `ordered_wait`, but emits results as calls complete: a slow call does not delay the others."""
    return _wait("unordered", df, function, schema, timeout, deadline, **options)


def _wait(
    mode: OutputMode,
    df: DataFrame,
    function: AnyFunction[Any, Any],
    schema: ResultSchema,
    timeout: float,
    deadline: float | None,
    *,
    dedupe_by: DedupeBy | None = None,
    extra: ExtraKeys,
    keep_input: bool,
    error_column: str,
    metrics: Any,
    idle_timeout: float,
    **more: Unpack[WaitOptions],
) -> DataFrame:
    key = _key_function(df, dedupe_by)
    options = AsyncOptions(**times_in_ms(timeout, deadline), output_mode=mode, dedupe_by=key, **more)
    result_schema = _result_schema(df, function, schema)
    if extra not in get_args(ExtraKeys):
        raise ValueError(f'extra is {extra!r}; choose "refuse" or "ignore"')
    columns = OutputColumns(
        T.StructType(df.schema.fields + result_schema.fields) if keep_input else result_schema,
        df.schema,
        error_name=error_column if options.on_error == "capture" else None,
        has_metrics=metrics is not None,
    )
    task = AsyncWaitTask(
        key=str(uuid.uuid4()),
        operator=f"{mode}_wait({name_of(function)})",
        function=function,
        options=options,
        result_schema=result_schema,
        extra=extra,
        none_is_row=accepts_none(function),
        keep_input=keep_input,
        columns=columns,
        time_zone=df.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC",
        idle_s=idle_timeout,
    )
    _check(df, task)
    if metrics is not None and not isinstance(metrics, str) and df.isStreaming:
        raise ValueError("metrics is an Observation, which only batch queries support; for a stream give a name")
    time_zone(task.time_zone)
    require_distinct(columns.task_schema())
    require_picklable(task.operator, task)
    share = share_of_task(options.rate_limit, df.sparkSession, df, task.operator)
    task = replace(task, options=replace(options, rate_limit=share))

    def async_wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            with worker_output() as output:
                yield from task.run(batches, worker_hosts(), output)
        except ReaderGoneError:
            leave_worker()

    ship_packages(df.sparkSession)
    cancel_jobs_on_interrupt(df.sparkSession)
    results = with_plain_names(df).mapInArrow(on_executors(async_wait), columns.task_schema())
    return results if metrics is None else observe_calls(results, metrics)


def _result_schema(df: DataFrame, function: AnyFunction[Any, Any], schema: ResultSchema) -> T.StructType:
    if schema is None:
        return schema_of(function)
    if isinstance(schema, T.StructType):
        return schema
    if isinstance(schema, T.DataType):
        return T.StructType([T.StructField(SCALAR_COLUMN, schema)])
    if isinstance(schema, str):
        parsed: T.StructType = df.sparkSession.createDataFrame([], schema).schema
        return parsed
    return schema_from(schema)


def _pace(options: AsyncOptions, host: CallHost, output: WorkerOutput) -> Pace:
    calls = options.first_records(host.is_batch)
    at_a_time = min(calls, options.records_for_calls(host.is_batch))
    if not options.may_grow:
        return Pace(at_a_time, calls, output)
    # Finished rows of an ordered wait lie behind slow ones, and more of them the longer its queue grows.
    return Pace(at_a_time, calls * PER_CALL, output, per_taken=_ROWS_PER_TAKEN)


def _check(df: DataFrame, task: AsyncWaitTask) -> None:
    """Raise on the driver the errors that every task would raise."""
    schema, columns = task.result_schema, task.columns
    require_supported(df.schema, "the DataFrame")
    require_supported(schema, "the schema of the results")
    if task.keep_input and (both := set(df.columns) & set(schema.names)):
        raise ValueError(
            f"keep_input adds the columns of the DataFrame to the results' columns, and both have {min(both)}"
        )
    taken = [] if columns.error_name is None else [columns.error_name.lower()]
    if columns.has_metrics:
        taken.append(METRICS_COLUMN)
    if clashes := [name for name in columns.schema.names if name.lower() in taken]:
        raise ValueError(
            f"the schema of the results has a column {clashes[0]}; rename it, or choose another error_column"
        )
    require_number("idle_timeout", task.idle_s, least=0)
    check_cache(df, task.options.cache, task.function)
    host_for(task.function, task.options)


def require_picklable(operator: str, task: Any) -> None:
    """Spark would also fail, but without naming the operator, and with Spark Connect only at the first action."""
    try:
        cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise TypeError(
            f"{operator}: the function, or what its options refer to, cannot be sent to the workers: {error}. "
            "Create connections, locks and the like in open(), and do not refer to the SparkSession."
        ) from error


def _key_function(df: DataFrame, dedupe_by: DedupeBy | None) -> Callable[[Any], Any] | None:
    if dedupe_by is None or not isinstance(dedupe_by, str | Sequence):
        return dedupe_by
    names = [dedupe_by] if isinstance(dedupe_by, str) else list(dedupe_by)
    if unknown := [name for name in names if name not in df.columns]:
        raise ValueError(f"dedupe_by names {', '.join(unknown)}; the columns are {', '.join(df.columns)}")
    return itemgetter(*(df.columns.index(name) for name in names))


def _with_input(check_input: Check, row: Any, results: Sequence[Any]) -> list[Any]:
    """Put the row's columns before each result; a captured error already holds the row."""
    values = check_input(row)
    return [result if type(result) is CapturedError else values + result for result in results]


@dataclass(frozen=True, kw_only=True)
class AsyncWaitTask:
    """The work of each task, from Arrow batches to Arrow batches. Pickles."""

    key: str
    """Unique per operator and shared by its tasks: it identifies their host in a worker."""
    operator: str
    function: AnyFunction[Any, Any]
    options: AsyncOptions
    result_schema: T.StructType
    extra: ExtraKeys
    none_is_row: bool
    keep_input: bool
    columns: OutputColumns
    time_zone: str
    idle_s: float

    def run(
        self, batches: Iterator[pa.RecordBatch], hosts: WorkerHosts, output: WorkerOutput | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The output of one task. The calling thread reads the input and yields the output, and blocks for both.

        `output`: where the batches are written; None: they wait in its buffer, and more rows are called for than the
        reader asks for.

        Raises:
            ReaderGoneError: the reader of `output` has ended. The calls under way were given up.
        """
        return self.run_rows(read_rows(self.columns.input_schema, batches), hosts, output)

    def run_rows(
        self, rows: Iterable[Sequence[Any]], hosts: WorkerHosts, output: WorkerOutput | None = None
    ) -> Iterator[pa.RecordBatch]:
        """As `run`, over rows that are read already, or are no rows of a DataFrame."""
        zone = time_zone(self.time_zone)
        check = row_check(self.result_schema, zone, self.extra, none_is_row=self.none_is_row)
        options = checked_options(self.options, check)
        if self.keep_input:
            options = replace(options, combine=partial(_with_input, row_check(self.columns.input_schema, zone)))
        metrics = CallMetrics()
        metrics.lost_attempts = _earlier_attempts()
        report = TaskReport(metrics)
        writer = ResultWriter(self.columns, zone)
        with hosts.lease(self.key, partial(self._open_host, check, options), self.idle_s) as host:
            pace = None if output is None else _pace(options, host, output)
            results: Any = wait_in_chunks(rows, host, options, max_chunk=_RESULTS_AT_ONCE, metrics=metrics, pace=pace)
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
                            pace.has_sent(batch.num_rows)
                    if host.result_session is not None:
                        host.result_session.flush()
                except AsyncOperatorError as error:
                    raise_in_worker(row_failure(self.operator, error))
                except ResultCacheError as error:
                    raise_in_worker(cache_failure(self.operator, error))
            if self.columns.has_metrics:
                yield writer.metrics_batch(report.take(is_last=True))

    def _open_host(self, check: Check, options: AsyncOptions) -> CallHost:
        function = checked_function(self.function, check, self.options.retry, none_is_row=self.none_is_row)
        function = with_cache(options.cache, self.function, function, options.enabled_retry, self.result_schema)
        host = make_host(function, pool_size=options.threads, max_calls=options.most_calls, name=name_of(self.function))
        try:
            host.start()
        except BaseException as error:
            raise_in_worker(open_failure(self.operator, error))
        return host


def _earlier_attempts() -> int:
    """The attempts of this task that preceded this one. Spark discards what they have counted."""
    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()
