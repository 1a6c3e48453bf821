"""Async I/O as a column: `async_column` for DataFrames, `register_async` for SQL.

A column is an Arrow UDF over the batches of a whole partition, so that calls overlap across batches, as in
`ordered_wait`: the operator, the host that outlives its task, limits, retries and delivery are the same. What differs
comes from Spark:

- A row has one value, in its place: no row can be left out, and none can have several results.
- Spark reads only the columns that a query needs: `count()` makes no calls, and a `limit` is applied before them.
- The column is marked as nondeterministic, so that Spark calls once for each row, and filters no rows before it calls.
  `deterministic` lets it filter first. Spark then calls twice for a row where it pushes a filter on the column itself
  below a projection, or puts one projection into another.
- `CASE WHEN`, `coalesce` and the like do not spare calls: Spark evaluates the functions in them for all rows. Give null
  arguments, with `skip_nulls`, to the rows that need no call.
- A column has no place for metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeAlias, Unpack, overload

import pyarrow as pa
import pyspark
from pyspark.errors import ParseException, PySparkRuntimeError
from pyspark.sql import Column, SparkSession
from pyspark.sql import types as T
from pyspark.sql.utils import is_remote
from pyspark.util import PythonEvalType

from dispatcher.errors import InvalidTypeError, InvalidValueError
from pipeline.spark.async_io.column.arguments import Arguments, NullsAside, read_arguments
from pipeline.spark.async_io.column.calls import (
    RESULT,
    AnyColumnFunction,
    check_arguments,
    check_column_function,
    column_function,
    column_options,
    column_type,
    is_async_function,
    nullable,
    parameters_of,
)
from pipeline.spark.async_io.result_schema import result_type_of, type_from, value_type_of
from pipeline.spark.async_io.results import OutputColumns
from pipeline.spark.async_io.rows import require_supported
from pipeline.spark.async_io.spark_types import ExtraKeys, values_of
from pipeline.spark.async_io.task import AsyncTask, CallFor, for_workers, zone_of_session
from pipeline.spark.errors import AsyncIOError, ResultTypeError
from pipeline.spark.failures import AsyncTaskError, raise_in_worker
from pipeline.spark.result_caches import cache_of_arguments
from pipeline.streaming.calls.functions import name_of
from pipeline.streaming.options import AsyncOptions, WaitOptions, takes_options, times_in_ms

ReturnType: TypeAlias = T.DataType | str | type[Any] | None
"""A type of Spark, DDL, or a class such as `float` or a dataclass; None: what the function declares."""
ArgumentKey: TypeAlias = str | Sequence[str] | Callable[..., Any]
OfColumns: TypeAlias = Callable[..., Column]
"""A function of columns, given as names or Columns."""

_TIMEOUT_S: Final = 180.0


class ColumnOptions(WaitOptions, total=False):
    """What `async_column` and `register_async` take."""

    dedupe_by: ArgumentKey | None
    extra: ExtraKeys
    skip_nulls: bool
    deterministic: bool
    idle_timeout: float


_takes_options = takes_options(ColumnOptions, extra="refuse", skip_nulls=False, deterministic=False, idle_timeout=30.0)


@overload
def async_column(  # type: ignore[overload-overlap]  # a name and a type are both text; with a timeout it is a name
    function: AnyColumnFunction,
    column: Column | str,
    /,
    *columns: Column | str,
    returns: ReturnType = None,
    timeout: float,
    deadline: float | None = None,
    **options: Unpack[ColumnOptions],
) -> Column: ...


@overload
def async_column(
    function: AnyColumnFunction,
    data_type: ReturnType = None,
    /,
    *,
    returns: ReturnType = None,
    timeout: float | None = None,
    deadline: float | None = None,
    **options: Unpack[ColumnOptions],
) -> OfColumns: ...


@_takes_options
def async_column(
    function: AnyColumnFunction,
    *columns: Any,
    returns: ReturnType = None,
    timeout: float | None = None,
    deadline: float | None = None,
    **options: Unpack[ColumnOptions],
) -> Column | OfColumns:
    """Return a column with the value of `function` for each row, with up to `concurrency` calls at a time in each task.

    You can use it in `withColumn`, `select` and `where`, in batch, streaming and Spark Connect, with PySpark 4.1.
    Without columns, or with a type in their place, you get a function of columns, as from `udf(function, "double")`:

        async_column(price_of, "item", lit("EUR"), timeout=10)
        async_column(price_of, "double")("item", lit("EUR"))
        async_column(price_of, returns="double", timeout=10)("item", lit("EUR"))

    A single string is a type if there's no `timeout`. With one, it's the name of a column, unless neither the function
    nor `returns` gives a type.

    `function`: your AsyncFunction, `async def`, or blocking function. It gets the values of the columns as arguments,
        and returns the value for the row. A struct is a Row, a null None. The methods of an AsyncFunction get several
        columns as one tuple, unless `async_invoke` also has several parameters. A list it returns must hold one result,
        or be empty for null.
    `columns`: names or Columns. A literal needs `lit`. For a function of a Row, pass `struct("id", ...)`.
    `returns`: the type of the values, by default the function's return type. Pass a Spark type, for example "double",
        or "price double, stock int" for a struct, or a class such as a dataclass.
    `timeout`, `deadline`, `extra`: as in `ordered_wait`. For a function of columns, the default timeout is 180 s.
    `on_error`: "fail", or a function that returns the value. It gets a CapturedError, whose `input` is the tuple of
        arguments. With "capture" the column is a struct of `result` and `error`. The error is null unless the call
        failed. Then it's a struct of error_class string, message string, attempts int and time_spent_ms double.
    `dedupe_by`: one or more arguments, named as in `columns` or in the function's signature, or a function of the
        arguments. Rows with the same key share one call and its value, which must depend only on the key.
    `cache`: its `key` names arguments, or is a function of them, as in `dedupe_by`.
    `skip_nulls`: rows with a null argument skip the call and return null.
    `deterministic`: equal arguments give equal values, and you can accept less or more than one call for a row. Spark
        then filters rows by their other columns before it calls, and can call twice for a row. By default there's one
        call for each row that reaches the column.
    `options`: the other options of `ordered_wait`. See `pipeline.streaming.AsyncOptions`.

    The active session sends the packages to its executors, and its time zone applies to values without one.

    Raises:
        ValueError, TypeError: an option, a name or a type is invalid, or `function` doesn't pickle.
        AsyncIOError: this PySpark is older than 4.1.
    """
    name = name_of(function)
    is_type = returns is None and len(columns) == 1 and _is_type(function, columns[0], timeout)
    if columns and not is_type:
        if timeout is None:
            raise InvalidTypeError(f"async_column({name}) has no timeout; give seconds for a row, as in timeout=10")
        return _column(function, columns, returns, timeout, deadline, **options)
    seconds = _TIMEOUT_S if timeout is None else timeout
    value_type = columns[0] if is_type else returns
    _require_arrow_functions(name)
    check_column_function(function)

    def of_columns(*columns: Column | str) -> Column:
        return _column(function, columns, value_type, seconds, deadline, **options)

    of_columns.__name__ = of_columns.__qualname__ = name
    return of_columns


@_takes_options
def register_async(
    spark: SparkSession,
    name: str,
    function: AnyColumnFunction,
    *,
    returns: ReturnType = None,
    timeout: float = _TIMEOUT_S,
    deadline: float | None = None,
    **options: Unpack[ColumnOptions],
) -> OfColumns:
    """Let SQL of the session call `function` as `name`: `SELECT id, price(item) FROM orders`.

    Returns the function of columns, as `spark.udf.register` does, for `withColumn` and `select`.

    It takes the parameters of `async_column`, calls the function with the same arguments and raises the same errors.
    Only `dedupe_by` differs: it names parameters of the function. SQL passes arguments by position: Spark refuses named
    ones. Spark doesn't know how many arguments the function takes, so a query with another number fails as it runs,
    before its first call.
    """
    remote = type(spark).__module__.startswith("pyspark.sql.connect.")
    user_function = _user_function(spark, remote, function, [], returns, timeout, deadline, **options)
    spark.udf.register(name, user_function)

    def of_columns(*columns: Column | str) -> Column:
        check_arguments(function, len(columns))
        column: Column = user_function(*columns)
        return column

    of_columns.__name__ = of_columns.__qualname__ = name
    return of_columns


def _column(
    function: AnyColumnFunction,
    columns: Sequence[Column | str],
    returns: ReturnType,
    timeout: float,
    deadline: float | None,
    **options: Unpack[ColumnOptions],
) -> Column:
    check_arguments(function, len(columns))
    remote = is_remote() or any(type(each).__module__.startswith("pyspark.sql.connect.") for each in columns)
    names = [each if isinstance(each, str) else None for each in columns]
    session = _active_session(remote)
    of_columns = _user_function(session, remote, function, names, returns, timeout, deadline, **options)
    column: Column = of_columns(*columns)
    return column


def _user_function(
    spark: SparkSession,
    remote: bool,
    function: AnyColumnFunction,
    names: Sequence[str | None],
    returns: ReturnType,
    timeout: float,
    deadline: float | None,
    **given: Unpack[ColumnOptions],
) -> Any:
    """A function of columns that Spark knows, and the packages that it needs on the session's executors."""
    name = name_of(function)
    _require_arrow_functions(name)
    check_column_function(function)
    skip_nulls = given["skip_nulls"]
    options = _settings(function, names, timeout, deadline, **given)
    captures = options.on_error == "capture"
    data_type = column_type(_value_type(function, returns), captures)
    schema = T.StructType([T.StructField(RESULT, data_type)])
    require_supported(schema, f"the values of async_column({name})")
    task = AsyncTask(
        operator=f"async_column({name})",
        function=column_function(function, captures),
        options=column_options(options),
        result_schema=schema,
        columns=OutputColumns(schema, T.StructType([])),
        extra=given["extra"],
        time_zone=zone_of_session(spark),
        idle_s=given["idle_timeout"],
    )

    def convert(call_for: CallFor, batches: Iterator[Any]) -> Iterator[pa.Array]:
        rows = read_arguments(_checked(function, batches))
        if not skip_nulls:
            return (batch.column(0) for batch in call_for(rows))
        nulls = NullsAside()
        values = (batch.column(0) for batch in call_for(nulls.without_nulls(rows)))
        return nulls.with_nulls(values, values_of(data_type).arrow)

    run = for_workers(task, spark, None, convert)
    if remote:
        from pyspark.sql.connect.udf import UserDefinedFunction
    else:
        from pyspark.sql.udf import UserDefinedFunction  # type: ignore[assignment]
    return UserDefinedFunction(
        run,
        nullable(data_type),
        name.rpartition(".")[2],
        PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF,
        deterministic=given["deterministic"],
    )


def _checked(function: AnyColumnFunction, batches: Iterator[Any]) -> Iterator[Any]:
    """The batches of a task. SQL calls the function by its name, so only a task sees how many columns there are."""
    for batch in batches:
        try:
            check_arguments(function, len(batch) if isinstance(batch, tuple) else 1)
        except TypeError as error:
            raise_in_worker(AsyncTaskError(f"async_column({name_of(function)}): {error}"))
        yield batch


def _settings(
    function: AnyColumnFunction,
    names: Sequence[str | None],
    timeout: float,
    deadline: float | None,
    *,
    dedupe_by: ArgumentKey | None = None,
    extra: ExtraKeys,
    skip_nulls: bool,
    deterministic: bool,
    idle_timeout: float,
    **more: Unpack[WaitOptions],
) -> AsyncOptions:
    """The options of the calls, checked. `names`: of the columns; None for a column without one."""
    options = AsyncOptions(
        **times_in_ms(timeout, deadline), dedupe_by=_key_function(function, names, dedupe_by), **more
    )
    if options.cache is not None:
        key_of = partial(_key_function, function, names, option="the cache's key")
        options = replace(options, cache=cache_of_arguments(options.cache, function, key_of))
    for option, value in (("skip_nulls", skip_nulls), ("deterministic", deterministic)):
        if not isinstance(value, bool):
            raise InvalidTypeError(f"{option} is {value!r}; give True or False")
    if options.on_error == "drop":
        raise InvalidValueError(
            'on_error is "drop", but a column has a value for each row; choose "capture", or give a function of the '
            "error that returns the value, such as lambda error: None"
        )
    return options


def _require_arrow_functions(name: str) -> None:
    if not hasattr(PythonEvalType, "SQL_SCALAR_ARROW_ITER_UDF"):
        raise AsyncIOError(
            f"async_column({name}) needs PySpark 4.1 or newer, and this is {pyspark.__version__}, whose columns of "
            "functions go through pandas, which changes integers and times. Use ordered_wait with keep_input=True."
        )


def _active_session(remote: bool) -> SparkSession:
    if not remote:
        return SparkSession.active()
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    return ConnectSession.active()  # type: ignore[return-value]


def _is_type(function: AnyColumnFunction, given: Any, timeout: float | None) -> bool:
    """Whether what stands alone in the place of columns is the type of the values."""
    if not isinstance(given, str):
        return isinstance(given, T.DataType | type)
    if timeout is not None:
        return not _declares_type(function) and _names_type(given)
    try:
        names_type = _names_type(given)
    except PySparkRuntimeError:
        return True  # there is no session yet, so the first use will tell
    if not names_type:
        raise InvalidValueError(
            f"async_column({name_of(function)}): {given!r} is no type of Spark. If it is a column, give a timeout as "
            "well, such as timeout=10"
        )
    return True


def _declares_type(function: AnyColumnFunction) -> bool:
    try:
        _value_type(function, None)
    except ResultTypeError:
        return False
    return True


def _names_type(text: str) -> bool:
    try:
        T.DataType.fromDDL(text)
    except ParseException:
        return False
    return True


def _value_type(function: AnyColumnFunction, returns: ReturnType) -> T.DataType:
    if isinstance(returns, T.DataType):
        return returns
    if isinstance(returns, str):
        return T.DataType.fromDDL(returns)
    if isinstance(returns, type):
        return type_from(returns).data_type
    if returns is not None:
        raise InvalidTypeError(
            f"returns is {returns!r}; give a type of Spark, such as 'double' or 'price double, stock int'"
        )
    # As in a call's answer, a list is an array for a plain function, and a list of results for an AsyncFunction.
    return (result_type_of if is_async_function(function) else value_type_of)(function).data_type


def _key_function(
    function: AnyColumnFunction,
    columns: Sequence[str | None],
    dedupe_by: ArgumentKey | None,
    option: str = "dedupe_by",
) -> Callable[[Arguments], Any] | None:
    """A function of a row's tuple of arguments."""
    if dedupe_by is None:
        return None
    if not isinstance(dedupe_by, str | Sequence):
        if not callable(dedupe_by):
            raise InvalidTypeError(f"{option} is {dedupe_by!r}; name arguments, or give a function of them")
        key = dedupe_by
        return lambda arguments: key(*arguments)
    invoked = getattr(function, "async_invoke", None) or function
    places = {name: place for place, name in enumerate(parameters_of(invoked))}
    places |= {name: place for place, name in enumerate(columns) if name is not None}
    keys = [dedupe_by] if isinstance(dedupe_by, str) else list(dedupe_by)
    if unknown := [key for key in keys if key not in places]:
        raise InvalidValueError(f"{option} names {', '.join(unknown)}; the arguments are {', '.join(places)}")
    return itemgetter(*(places[key] for key in keys))
