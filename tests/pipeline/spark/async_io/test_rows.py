from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as T

from pipeline.streaming import CapturedError
from pipeline.streaming.elements import UnreadableValue

from .task_rows import (
    EMPTY,
    InputRows,
    InputValueError,
    OutputColumns,
    ResultSchemaError,
    ResultWriter,
    UnknownColumnError,
    all_read,
    batch_of,
    checker,
    inner_types,
    read_rows,
    row_maker,
    schema_of,
    time_zone,
    usual_rows_first,
    values_of,
)

BERLIN = ZoneInfo("Europe/Berlin")


def read(schema: T.StructType, *batches: pa.RecordBatch, slice_rows: int = 500) -> list[Any]:
    chunks = read_rows(schema, batches, slice_rows)
    return [row for chunk in chunks for row in chunk]


def round_trip(data_type: T.DataType, *values: Any) -> list[Any]:
    schema = schema_of(("value", data_type))
    return [row.value for row in read(schema, batch_of(schema, [(value,) for value in values]))]


STRUCT = schema_of(("name", T.StringType()), ("size", T.IntegerType()))


@dataclass(frozen=True)
class Point:
    x: float
    y: float


class Big(Enum):
    ODD = 2**53 + 1
    EVEN = 2**53 + 2


class PointType(T.UserDefinedType):
    @classmethod
    def sqlType(cls) -> T.DataType:
        return schema_of(("x", T.DoubleType()), ("y", T.DoubleType()))

    def serialize(self, obj: Any) -> Any:
        return obj.x, obj.y

    def deserialize(self, datum: Any) -> Any:
        return Point(*datum)


TYPES: list[tuple[T.DataType, list[Any]]] = [
    (T.BooleanType(), [True, False, None]),
    (T.ByteType(), [-128, 127, None]),
    (T.ShortType(), [-32768, 32767]),
    (T.IntegerType(), [-(2**31), 2**31 - 1]),
    (T.LongType(), [-(2**63), 2**63 - 1, None]),
    (T.FloatType(), [0.5, None]),
    (T.DoubleType(), [0.1, float("inf"), None]),
    (T.StringType(), ["", "naïve", "\U0001f600", None]),
    (T.BinaryType(), [b"", b"\x00\xff", None]),
    (T.DateType(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    (T.TimestampNTZType(), [dt.datetime(1969, 12, 31, 23, 59, 59, 999999), None]),
    (T.DayTimeIntervalType(), [dt.timedelta(days=-3, microseconds=1), None]),
    (T.DecimalType(10, 2), [Decimal("12345678.91"), Decimal("-0.05"), None]),
    (T.DecimalType(38, 18), [Decimal("12345678901234567890.123456789012345678")]),
    (T.NullType(), [None, None]),
    (T.ArrayType(T.LongType()), [[1, None], [], None]),
    (T.ArrayType(T.ArrayType(T.StringType())), [[["a"], None, []], None]),
    (T.ArrayType(STRUCT), [[("a", 1), None], [], None]),
    (T.MapType(T.StringType(), T.LongType()), [{"a": 1, "b": None}, {}, None]),
    (T.MapType(T.LongType(), STRUCT), [{1: ("a", 1), 2: None}, None, {}]),
    (STRUCT, [("a", 1), (None, None), None]),
    (schema_of(("inner", STRUCT)), [(("a", 1),), (None,), None]),
    (T.CharType(3), ["a", None]),
    (T.VarcharType(3), ["naïve", None]),
    (T.VariantType(), [T.VariantVal.parseJson('{"a": [1, "x", null]}'), None]),
    (PointType(), [Point(1.0, 2.0), None]),
    (T.ArrayType(PointType()), [[Point(1.0, 2.0), None], None]),
    (T.MapType(T.StringType(), PointType()), [{"a": Point(1.0, 2.0)}, None]),
    (schema_of(("point", PointType())), [(Point(1.0, 2.0),), None]),
]
"""Types and some of their values. The types that can be carried, but TIMESTAMP, whose values depend on the session."""
if hasattr(T, "TimeType"):  # not in Spark 4.0
    TYPES.append((T.TimeType(6), [dt.time(1, 2, 3, 456), None]))


def plain(values: list[Any]) -> list[Any]:
    """With the text of variants, which do not compare."""
    return [value.toJson() if isinstance(value, T.VariantVal) else value for value in values]


@pytest.mark.parametrize(
    ("data_type", "values"), TYPES, ids=lambda value: value.simpleString() if isinstance(value, T.DataType) else ""
)
def test_values_come_back_as_they_were_given(data_type: T.DataType, values: list[Any]) -> None:
    assert plain(round_trip(data_type, *values)) == plain(values)


def test_timestamp_is_aware_in_the_time_zone_of_the_session() -> None:
    schema = schema_of(("at", T.TimestampType()))
    moment = dt.datetime(2026, 7, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
    batch = pa.RecordBatch.from_arrays([pa.array([moment, None], pa.timestamp("us", tz="Europe/Berlin"))], ["at"])

    first, second = read(schema, batch)

    assert first.at == moment
    assert first.at.isoformat() == "2026-07-01T14:00:00.123456+02:00"
    assert second.at is None


def test_naive_result_for_a_timestamp_is_in_the_time_zone_of_the_session() -> None:
    check = checker(schema_of(("at", T.TimestampType())), BERLIN)

    (moment,) = check((dt.datetime(2026, 7, 1, 12),))

    assert moment == dt.datetime(2026, 7, 1, 10, tzinfo=dt.UTC)


def test_nested_struct_is_a_row_with_names() -> None:
    (value,) = round_trip(schema_of(("inner", STRUCT)), ({"name": "a", "size": 3},))

    assert isinstance(value.inner, Row)
    assert value.inner.name == "a"
    assert value.asDict(recursive=True) == {"inner": {"name": "a", "size": 3}}


def test_rows_are_read_in_slices_also_of_batches_with_an_offset() -> None:
    schema = schema_of(("tags", T.ArrayType(STRUCT)), ("sizes", T.MapType(T.StringType(), T.LongType())))
    rows = [([(str(i), i)] * (i % 3), {str(i): i}) for i in range(20)]
    batch = batch_of(schema, rows)

    chunks = list(read_rows(schema, [batch.slice(3, 11)], slice_rows=4))

    assert [len(chunk) for chunk in chunks] == [4, 4, 3]
    assert [tuple(row) for chunk in chunks for row in chunk] == rows[3:14]


def test_large_rows_are_read_in_smaller_slices() -> None:
    schema = schema_of(("text", T.StringType()))
    batch = batch_of(schema, [("x" * 1000,)] * 10)

    chunks = list(read_rows(schema, [batch], slice_bytes=3100))

    assert [len(chunk) for chunk in chunks] == [3, 3, 3, 1]


def test_a_row_behaves_like_pysparks() -> None:
    names = ["id", "count", "with space", "id"]
    made = row_maker(names)((1, 2, 3, 4))
    ours, theirs = made, Row(*names)(1, 2, 3, 4)

    assert ours == theirs
    assert repr(ours) == repr(theirs)
    assert (ours.id, ours["count"], ours["with space"]) == (theirs.id, theirs["count"], theirs["with space"])
    assert callable(ours.count)  # the tuple's own method, as in PySpark
    assert type(pickle.loads(pickle.dumps(ours))) is Row
    assert pickle.loads(pickle.dumps(ours)).asDict() == theirs.asDict()
    assert not hasattr(ours, "missing")
    assert not hasattr(ours, "__missing__")


def test_a_column_that_a_row_lacks_is_answered_with_those_it_has() -> None:
    row = row_maker(["id", "item", "count"])((1, 2, 3))

    with pytest.raises(AttributeError, match=r"no column 'idd'; its columns are id, item, count. Did you mean 'id'\?"):
        _ = row.idd
    with pytest.raises(KeyError, match=r"no column 'price'; its columns are id, item, count.$"):
        _ = row["price"]
    assert pickle.loads(pickle.dumps(UnknownColumnError("a", ["b"]))).columns == ("b",)


# ------------------------------------------------------------------------------------------------- what does not fit

COLUMNS = schema_of(("id", T.LongType()), ("name", T.StringType()))


@pytest.mark.parametrize("result", [("a", 3), (None, None), {"size": 3, "name": "a"}, {"name": "", "size": 2**31 - 1}])
def test_usual_values_are_spared_the_check(result: Any) -> None:
    check = usual_rows_first(not_called, STRUCT)

    values = result if type(result) is tuple else (result["name"], result["size"])
    assert check(result) == values


@pytest.mark.parametrize(
    "result",
    [
        ("ä", 3),
        ("x" * 5000, 3),
        ("a", 2**31),
        ("a", True),
        ("a",),
        ("a", 3, 4),
        ["a", 3],
        {"name": "a"},
        {"name": "a", "length": 3},
        Row(name="a", size=3),
    ],
)
def test_other_results_are_checked(result: Any) -> None:
    checked: list[Any] = []
    usual_rows_first(checked.append, STRUCT)(result)
    usual_rows_first(checked.append, schema_of(("at", T.DateType())))((dt.date(2024, 2, 29),))
    usual_rows_first(checked.append, schema_of(("name", T.StringType()), nullable=False))((None,))

    assert checked == [result, (dt.date(2024, 2, 29),), (None,)]


def not_called(value: Any) -> Any:
    raise AssertionError(value)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((1,), r"\(1,\) has 1 values; the columns are id, name"),
        (Row(1, 2, 3), "has 3 values; the columns are id, name"),
        ({"nane": "a"}, "the result names nane; the columns are id, name"),
        (Row(id=1, nane="a"), "the result names nane"),
        (5, r"5 \(int\) is not a row; return a Row, a dict, a tuple"),
        ("ab", "is not a row"),
        ((1, 2), r"the column name of the result does not fit the schema: 2 \(int\) is not a string"),
        (("1", "a"), r"the column id .* '1' \(str\) is not of type bigint"),
    ],
)
def test_result_that_is_not_a_row_of_the_schema_is_refused(result: Any, message: str) -> None:
    with pytest.raises(ResultSchemaError, match=message):
        checker(COLUMNS)(result)


@pytest.mark.parametrize(
    ("data_type", "value", "message"),
    [
        (T.ByteType(), 128, "128 does not fit into tinyint, whose range is -128 to 127"),
        (T.LongType(), 2**63, "does not fit into bigint"),
        (T.LongType(), True, "True .bool. is not of type bigint"),
        (T.LongType(), 1.0, "1.0 .float. is not of type bigint"),
        (T.DoubleType(), "1", "is not of type double"),
        (T.DoubleType(), 10**400, "does not fit into double"),
        (T.DoubleType(), 2**53 + 1, "9007199254740993 would be rounded in double; return a float, or make"),
        (T.DoubleType(), -(2**53) - 1, "would be rounded in double"),
        (T.DoubleType(), np.int64(2**53 + 1), "would be rounded in double"),
        (T.DoubleType(), Big.ODD, "would be rounded in double"),
        *(  # they became infinity
            (T.FloatType(), beyond, "does not fit into float")
            for beyond in (3.4028236e38, -1e39, 1.7e308, 10**39, 10**400)
        ),
        (T.FloatType(), 2**24 + 1, "16777217 would be rounded in float"),
        (T.FloatType(), np.int32(2**24 + 1), "would be rounded in float"),
        (T.BooleanType(), 1, "is not a boolean"),
        (T.StringType(), 1, "is not a string"),
        (T.StringType(), "\ud800", "a lone surrogate"),
        (T.BinaryType(), "x", "is not binary"),
        (T.DateType(), dt.datetime(2026, 1, 1), "is not a date"),
        (T.TimestampType(), dt.date(2026, 1, 1), "is not a timestamp"),
        (
            T.TimestampType(),
            dt.datetime(9999, 12, 31, 23, tzinfo=dt.timezone(-dt.timedelta(hours=5))),
            "years 1 to 9999",
        ),
        (T.TimestampNTZType(), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "without a time zone"),
        (T.TimestampType(), pd.Timestamp(1, tz="UTC"), "has nanoseconds, and the column microseconds; round it"),
        (T.TimestampNTZType(), pd.Timestamp(1), "has nanoseconds"),
        (T.TimestampNTZType(), pd.NaT, "is not a timestamp"),
        (T.DayTimeIntervalType(), pd.Timedelta(1), "has nanoseconds"),
        (T.DayTimeIntervalType(), 5, "is not a timedelta"),
        (T.DayTimeIntervalType(), dt.timedelta.max, "does not fit into an interval"),
        (T.DecimalType(5, 2), Decimal("1.234"), "1.234 has 3 digits after the point, .* takes 2; round it"),
        (T.DecimalType(5, 2), Decimal("1000"), "3 digits before the point"),
        (T.DecimalType(5, 2), Decimal("nan"), "is not a finite number"),
        (T.DecimalType(5, 2), 1.5, "is not a decimal"),
        (T.NullType(), 1, "is not null"),
        (T.VariantType(), {"a": 1}, "is not a variant"),
        (T.ArrayType(T.LongType()), "abc", "is not a list"),
        (T.MapType(T.StringType(), T.LongType()), [1], "is not a dict"),
        (STRUCT, [1, 2], "is not a row"),
    ],
)
def test_value_that_does_not_fit_its_column_is_refused_with_the_column(
    data_type: T.DataType, value: Any, message: str
) -> None:
    with pytest.raises(ResultSchemaError, match=message) as refused:
        checker(schema_of(("first", T.LongType()), ("value", data_type)), BERLIN)((1, value))

    assert refused.value.column == "value"


@pytest.mark.parametrize(("element", "value"), [(T.IntegerType(), "2"), (T.DoubleType(), 2**53 + 1)])
def test_refusal_names_the_place_in_a_nested_value(element: T.DataType, value: Any) -> None:
    inner = schema_of(("sizes", T.MapType(T.StringType(), T.ArrayType(element))))

    with pytest.raises(ResultSchemaError) as refused:
        checker(schema_of(("top", inner)))({"top": {"sizes": {"a": [1, value]}}})

    assert refused.value.column == "top.sizes['a'][1]"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (schema_of(("value", T.LongType()), nullable=False), None),
        (schema_of(("value", T.ArrayType(T.LongType(), containsNull=False))), [1, None]),
        (schema_of(("value", T.MapType(T.StringType(), T.LongType(), False))), {"a": None}),
        (schema_of(("value", T.MapType(T.StringType(), T.LongType()))), {None: 1}),
    ],
)
def test_null_is_refused_where_the_schema_has_none(schema: T.StructType, value: Any) -> None:
    with pytest.raises(ResultSchemaError, match="it is null"):
        checker(schema)((value,))


@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (T.DoubleType(), [2**53, -(2**53), 2**53 + 2, 2**80, 0, np.int64(2**60), Big.EVEN, 2.0**53 + 1, 0.1]),
        (T.FloatType(), [2**24, -(2**24) - 2, 2**100, np.int8(3), 0.1, 16777217.0]),  # a float is rounded
        (T.FloatType(), [3.4028235e38, -3.4028235e38, 1e-50, float("inf"), float("-inf"), 3.1e38]),
    ],
)
def test_a_number_within_the_range_that_is_not_rounded_by_it_is_taken(data_type: T.DataType, values: Any) -> None:
    check = checker(schema_of(("x", data_type)))

    found = [check((value,)) for value in values]

    assert found == [(float(getattr(value, "value", value)),) for value in values]
    assert {type(number) for (number,) in found} == {float}


def test_numpy_numbers_are_accepted_as_pythons() -> None:
    schema = schema_of(
        ("count", T.LongType()),
        ("score", T.DoubleType()),
        ("good", T.BooleanType()),
        ("vector", T.ArrayType(T.FloatType())),
    )

    checked = checker(schema)((np.int32(3), np.float32(0.5), np.bool_(True), np.array([1.0, 2.0])))

    assert checked == (3, 0.5, True, [1.0, 2.0])
    assert [type(value) for value in checked] == [int, float, bool, list]


_NASTY_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.decimals(),
    st.text(st.characters()),
    st.binary(),
    st.dates(),
    st.datetimes(timezones=st.none() | st.just(dt.UTC) | st.just(BERLIN)),
    st.timedeltas(),
    st.times(),
)
_SIMPLE_TYPES = [
    T.TimestampType(),
    *(data_type for data_type, _ in TYPES if not inner_types(data_type) and not isinstance(data_type, T.VariantType)),
]


@given(
    value=_NASTY_VALUES,
    data_type=st.sampled_from(_SIMPLE_TYPES),
    nesting=st.sampled_from(["", "list", "struct", "map"]),
)
def test_every_value_that_the_check_accepts_can_be_written(value: Any, data_type: T.DataType, nesting: str) -> None:
    if nesting == "list":
        value, data_type = [value], T.ArrayType(data_type)
    elif nesting == "struct":
        value, data_type = (value,), schema_of(("inner", data_type))
    elif nesting == "map":
        value, data_type = {"key": value}, T.MapType(T.StringType(), data_type)
    schema = schema_of(("value", data_type))
    try:
        checker(schema)((value,))
    except ResultSchemaError:
        return

    assert batch_of(schema, [(value,), (None,)]).num_rows == 2


# ------------------------------------------------------------------------------------------------------ output batches


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def writer_of(**bounds: Any) -> ResultWriter:
    return ResultWriter(OutputColumns(schema_of(("text", T.StringType())), EMPTY), **{"clock": Clock()} | bounds)


def test_small_chunks_go_together_into_one_batch() -> None:
    writer = writer_of(max_rows=5)

    batches = list(writer.batches([[("a",)], [], [("b",), ("c",)], [("d",)] * 4]))

    assert [batch.num_rows for batch in batches] == [5, 2]
    assert [value for batch in batches for value in batch.column(0).to_pylist()] == ["a", "b", "c", *"dddd"]


def test_rows_do_not_wait_for_a_full_batch_for_long() -> None:
    clock = Clock()
    writer = writer_of(max_rows=100, max_wait_s=1.0, clock=clock)

    batches = writer.batches(late_chunks(clock))

    assert next(batches).num_rows == 2


def late_chunks(clock: Clock) -> Iterator[list[tuple[str]]]:
    yield [("a",)]
    clock.now_s = 1.0
    yield [("b",)]
    pytest.fail("the batch should have been written earlier")


def test_captured_error_is_a_row_of_nulls_with_the_input() -> None:
    columns = OutputColumns(schema_of(("name", T.StringType()), nullable=False), STRUCT, error_name="error")
    captured = CapturedError("the row as Arrow has it counts", "ValueError", "bad \ud800", 3, 12.5)
    source = all_read(STRUCT, [batch_of(STRUCT, [("out", 1), ("in", 7)])])

    (batch,) = ResultWriter(columns, source).batches([[(0, ("good",)), (1, captured)]])

    good, bad = read(columns.task_schema(), batch)
    assert good == ("good", None)
    assert bad.name is None
    assert bad.error.asDict(recursive=True) == {
        "input": {"name": "in", "size": 7},
        "error_class": "ValueError",
        "message": "bad \\ud800",
        "attempts": 3,
        "time_spent_ms": 12.5,
    }


KEPT = OutputColumns(schema_of(("result", T.LongType())), schema_of(("id", T.LongType())), keeps_input=True)


def numbered(numbers: Iterable[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], ["id"])


@pytest.mark.parametrize(("data_type", "values"), TYPES, ids=lambda value: getattr(value, "simpleString", str)())
def test_kept_columns_and_the_input_of_an_error_are_those_of_the_input(
    data_type: T.DataType, values: list[Any]
) -> None:
    schema = schema_of(("kept", data_type))
    columns = OutputColumns(schema_of(("id", T.LongType())), schema, error_name="error", keeps_input=True)
    source = InputRows(schema, [batch_of(schema, [(value,) for value in values])])
    (rows_in,) = source
    failed = CapturedError(None, "ValueError", "bad", 1, 0.0)

    (batch,) = ResultWriter(columns, source).batches([[(at, each) for _, at in rows_in for each in ((1,), failed)]])

    rows = read(columns.task_schema(), batch)
    assert plain([row.kept for row in rows[::2]]) == plain(values)
    assert plain([row.error.input.kept for row in rows[1::2]]) == plain(values)


@pytest.mark.parametrize("order", [range(100), range(99, -1, -1), [3, 3, 3], [99], [98, 5, 70], []])
def test_results_in_any_order_meet_the_rows_that_they_are_of(order: Sequence[int]) -> None:
    source = all_read(KEPT.input_schema, [numbered(range(100))], slice_rows=30)

    batches = ResultWriter(KEPT, source).batches([[(number, (number,)) for number in order]])

    assert [tuple(row) for row in read(KEPT.task_schema(), *batches)] == [(place, place) for place in order]


def test_a_row_in_flight_keeps_its_own_piece_of_the_input() -> None:
    """A slow row would keep the whole batch that it came in."""
    batch = numbered(range(100_000))
    source = InputRows(KEPT.input_schema, [batch])

    next(iter(source))

    (piece,) = source.pieces()
    assert piece.get_total_buffer_size() < batch.nbytes / 100


def test_a_piece_of_the_input_is_kept_until_what_came_of_each_of_its_rows_is_written() -> None:
    source = all_read(KEPT.input_schema, [numbered(range(6))], slice_rows=2)
    writer = ResultWriter(KEPT, source, max_rows=2)
    source.without_results.append(5)

    list(writer.batches([[(4, (4,)), (4, (4,)), (4, (4,)), (1, (1,)), (2, (2,)), (3, (3,))]]))

    kept = [piece.column(0).to_pylist() for piece in source.pieces()]
    assert kept == [[0, 1], [2, 3]]  # row 0 is in flight, and more may come of row 3
    list(writer.batches([[(0, (0,))]]))
    assert [piece.column(0).to_pylist() for piece in source.pieces()] == [[0, 1]]  # more may come of row 0


def test_pieces_of_which_nothing_comes_are_not_kept() -> None:
    """Where no row has a result nothing is written, and the whole partition stayed in memory."""
    source = InputRows(KEPT.input_schema, [numbered(range(6))], slice_rows=2)

    for rows in source:
        source.without_results.extend(number for _, number in rows)
        kept = source.pieces()

    assert [piece.column(0).to_pylist() for piece in kept] == [[4, 5]]


# ------------------------------------------------------------------------------------ values that Python lacks


NEW_YORK = pa.timestamp("us", tz="America/New_York")
END = 253_402_300_800_000_000
"""The first microsecond of the year 10000 in UTC."""


def days(*since_1970: int | None) -> Any:
    return pa.array(since_1970, pa.int32()).cast(pa.date32())


@pytest.mark.parametrize(
    ("data_type", "array", "text"),
    [
        (T.TimestampType(), pa.array([0, END, None], NEW_YORK), "9999-12-31 19:00:00"),
        (T.TimestampType(), pa.array([0, -62_135_596_800_000_000, None], NEW_YORK), "0000-12-31 19:03:58"),
        (T.TimestampNTZType(), pa.array([0, END, None], pa.timestamp("us")), "10000-01-01"),
        (T.DateType(), days(0, 2_932_897, None), "10000-01-01"),
        (T.DateType(), days(0, -719_163, None), "0000-12-31"),
        (T.ArrayType(T.DateType()), pa.array([[days(0)[0]], [days(2_932_897)[0]], None]), "10000-01-01"),
        (
            T.MapType(T.StringType(), T.TimestampType()),
            pa.array([[("a", 0)], [("a", END)], None], pa.map_(pa.string(), NEW_YORK)),
            "a",
        ),
        (
            schema_of(("at", T.TimestampType())),
            pa.array([{"at": 0}, {"at": END}, None], pa.struct([("at", NEW_YORK)])),
            "10000-01-01",
        ),
        (T.StringType(), pa.array([b"a", b"\xff", None], pa.binary()).view(pa.string()), "\ufffd"),
    ],
)
def test_a_value_that_python_cannot_hold_is_its_own_rows_error(data_type: T.DataType, array: Any, text: str) -> None:
    """One such value failed the task, with a bare OverflowError."""
    schema = schema_of(("id", T.LongType()), ("value", data_type))
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int64()), array], schema.names)

    first, second, third = read(schema, batch)

    assert (first.id, third.id, third.value) == (1, 3, None)
    assert isinstance(second, UnreadableValue)
    assert isinstance(second.value, Row)
    assert second.value.id == 2
    with pytest.raises(InputValueError, match=f"the column value is <.*{text}.*which Python cannot hold .*Cast"):
        raise second.error


def test_an_error_holds_the_row_that_python_could_not() -> None:
    schema = schema_of(("on", T.DateType()))
    columns = OutputColumns(schema_of(("id", T.LongType())), schema, error_name="error")
    beyond = days(2_932_897)
    source = all_read(schema, [pa.RecordBatch.from_arrays([beyond], ["on"])])

    (batch,) = ResultWriter(columns, source).batches([[(0, CapturedError(None, "ValueError", "bad", 1, 0.0))]])

    assert batch.column(1).flatten()[0].flatten()[0] == beyond


@pytest.mark.parametrize("nested", [False, True])
def test_a_map_keeps_both_instants_of_a_repeated_hour(nested: bool) -> None:
    """They compared equal, and the dict had one entry."""
    moments = [1762061400_000_000, 1762065000_000_000]
    key = pa.struct([("at", NEW_YORK)]) if nested else NEW_YORK
    data_type = T.MapType(schema_of(("at", T.TimestampType())) if nested else T.TimestampType(), T.StringType())
    keys = [{"at": moment} for moment in moments] if nested else moments
    entries = pa.array([list(zip(keys, ["EDT", "EST"], strict=True))], pa.map_(key, pa.string()))

    ((found,),) = read(schema_of(("m", data_type)), pa.RecordBatch.from_arrays([entries], ["m"]))

    assert list(found.values()) == ["EDT", "EST"]
    ats = [each.at for each in found] if nested else list(found)
    assert [(each.hour, each.utcoffset()) for each in ats] == [(1, dt.timedelta(hours=-hours)) for hours in (4, 5)]
    assert nested or found[dt.datetime(2025, 11, 2, 6, 30, tzinfo=dt.UTC)] == "EST"


@pytest.mark.parametrize(
    "data_type", [T.TimestampType(), *(each for each, _ in TYPES)], ids=lambda data_type: data_type.simpleString()
)
def test_row_of_metrics_has_a_value_in_columns_that_are_never_null(data_type: T.DataType) -> None:
    columns = OutputColumns(schema_of(("value", data_type), nullable=False), EMPTY, has_metrics=True)
    rows = [[1, 2], [3]]

    batch = ResultWriter(columns).metrics_batch(rows)

    assert batch.num_rows == 2
    assert batch.column(1).to_pylist() == rows
    assert batch.column(0).null_count == 0 or data_type == T.NullType()


def test_arrow_type_of_a_struct_keeps_the_names_even_twice_the_same() -> None:
    twice = schema_of(("a", T.LongType()), ("a", T.StringType()))

    assert round_trip(twice, (1, "x")) == [(1, "x")]
    assert str(values_of(twice).arrow) == "struct<a: int64, a: string>"


@pytest.mark.parametrize(
    ("name", "minutes"),
    [
        ("UTC", 0),
        ("Z", 0),
        ("Etc/UTC", 0),
        ("Europe/Berlin", 120),
        ("+01:00", 60),
        ("-1:30", -90),
        ("UTC+1", 60),
        ("GMT-08:00", -480),
        ("UT+0530", 330),
    ],
)
def test_sparks_names_of_time_zones_are_understood(name: str, minutes: int) -> None:
    assert dt.datetime(2026, 7, 1, 12).replace(tzinfo=time_zone(name)).utcoffset() == dt.timedelta(minutes=minutes)
