"""Results as users have them: scalars, dataclasses, pydantic models, and names beyond the schema."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, NotRequired, TypedDict

import pytest
from pydantic import BaseModel, ConfigDict, computed_field
from pyspark.sql import Row, SparkSession
from pyspark.sql import types as T

from pipeline.spark import ordered_wait, unordered_wait
from pipeline.spark.async_io.checked_calls import checked_function
from pipeline.spark.async_io.result_schema import schema_from
from pipeline.spark.async_io.spark_types import ExtraKeys, row_check
from pipeline.spark.errors import ResultSchemaError
from pipeline.streaming import AsyncFunction, RetryStrategy

TIMEOUT_S = 60.0


class State(enum.Enum):
    SOLD = "sold"


@dataclass
class Seller:
    name: str
    rating: float | None = None


@dataclass
class Offer:
    price: float
    seller: Seller


class Item(BaseModel):
    id: int
    state: State
    cents: Annotated[Decimal, T.DecimalType(10, 2)]
    offers: list[Offer] = []

    @computed_field  # type: ignore[prop-decorator]
    @property
    def offered(self) -> int:
        return len(self.offers)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    price: float


PRICE = T.StructType([T.StructField("price", T.DoubleType())])
OFFER = schema_from(Offer)


def check(schema: T.StructType, result: Any, extra: ExtraKeys = "refuse", *, none_is_row: bool = False) -> Any:
    return row_check(schema, dt.UTC, extra, none_is_row=none_is_row)(result)


# -- one value ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [1.5, (1.5,), {"price": 1.5}, Row(price=1.5), Open(price=1.5)])
def test_a_value_is_that_of_the_only_column(result: Any) -> None:
    assert check(PRICE, result) == (1.5,)


def test_a_value_of_an_array_column_is_one_result() -> None:
    schema = T.StructType([T.StructField("vector", T.ArrayType(T.DoubleType()))])

    assert check(schema, [0.5, 1.0]) == ([0.5, 1.0],)


def test_a_value_that_does_not_fit_names_the_only_column() -> None:
    with pytest.raises(ResultSchemaError, match=r"the column price .* 'a' \(str\) is not of type double"):
        check(PRICE, "a")


def test_a_value_does_not_stand_for_a_row_inside_a_row() -> None:
    schema = T.StructType([T.StructField("inner", PRICE), T.StructField("id", T.LongType())])

    with pytest.raises(ResultSchemaError, match=r"the column inner .* 1.5 \(float\) is not a row"):
        check(schema, (1.5, 1))


@pytest.mark.parametrize("schema", [PRICE, schema_from(Seller)])
def test_none_is_a_row_of_nulls_only_if_the_function_says_so(schema: T.StructType) -> None:
    nullable = T.StructType([T.StructField(field.name, field.dataType) for field in schema.fields])

    assert check(nullable, None, none_is_row=True) == (None,) * len(schema.fields)
    with pytest.raises(TypeError, match="returned None"):
        checked_function(lambda _: None, row_check(nullable, dt.UTC), None)(0)


def test_a_retry_may_judge_a_none_that_is_a_result() -> None:
    retry = RetryStrategy.fixed_delay(1, 1, retry_on_result=lambda results: list(results) == [None])
    function = checked_function(lambda _: None, row_check(PRICE, dt.UTC, none_is_row=True), retry, none_is_row=True)

    results = function(0)

    assert (list(results), results.wants_retry) == ([(None,)], True)


# -- objects -----------------------------------------------------------------------------------------------------------


def test_a_dataclass_is_matched_by_name_also_inside_another() -> None:
    assert check(OFFER, Offer(1.5, Seller("a"))) == (1.5, ("a", None))


def test_a_pydantic_model_is_matched_by_name() -> None:
    item = Item(id=1, state=State.SOLD, cents=Decimal("1.5"), offers=[Offer(1.5, Seller("a", 4.0))])

    assert check(schema_from(Item), item) == (1, "sold", Decimal("1.5"), [(1.5, ("a", 4.0))], 1)


def test_a_computed_field_may_be_left_out() -> None:
    schema = T.StructType([field for field in schema_from(Item).fields if field.name != "offered"])

    assert check(schema, Item(id=1, state=State.SOLD, cents=Decimal(2))) == (1, "sold", Decimal(2), [])


def test_a_column_that_an_object_lacks_is_null() -> None:
    schema = T.StructType([T.StructField("rating", T.DoubleType()), T.StructField("note", T.StringType())])

    assert check(schema, Seller("a", 4.0), "ignore") == (4.0, None)


def test_the_class_decides_for_each_result() -> None:
    """One task may return results of several classes."""
    check_seller = row_check(schema_from(Seller), dt.UTC)

    assert [check_seller(each) for each in (Seller("a"), {"name": "b"}, ("c", 1.0), Seller("d"))] == [
        ("a", None),
        ("b", None),
        ("c", 1.0),
        ("d", None),
    ]


# -- names beyond the schema -------------------------------------------------------------------------------------------

MORE = [
    {"price": 1.5, "note": "x"},
    Row(note="x", price=1.5),
    Open(price=1.5, note="x"),
    Offer(1.5, Seller("a")),
]


@pytest.mark.parametrize("result", MORE, ids=lambda each: type(each).__name__)
def test_a_name_beyond_the_schema_is_refused_unless_it_is_to_be_ignored(result: Any) -> None:
    with pytest.raises(ResultSchemaError, match=r'names (note|seller); the columns are price. .*extra="ignore"'):
        check(PRICE, result)

    assert check(PRICE, result, "ignore") == (1.5,)


def test_names_are_ignored_inside_structs_lists_and_maps_as_well() -> None:
    rows = T.StructType(
        [T.StructField("list", T.ArrayType(PRICE)), T.StructField("map", T.MapType(T.StringType(), PRICE))]
    )
    result = {"list": [MORE[0]], "map": {"a": MORE[0]}, "more": 1}

    assert check(rows, result, "ignore") == ([(1.5,)], [("a", (1.5,))])
    with pytest.raises(ResultSchemaError, match=r"list\[0\]"):
        check(rows, {"list": [MORE[0]], "map": {}})


# -- on Spark ----------------------------------------------------------------------------------------------------------


class FindItem(AsyncFunction[Row, Item]):
    async def async_invoke(self, value: Row) -> Item:
        offers = [Offer(value.id / 2, Seller("a", None))] * value.id
        return Item(id=value.id, state=State.SOLD, cents=Decimal(value.id), offers=offers)


class Found(TypedDict):
    item: int
    at: NotRequired[str]


def test_the_return_type_is_the_schema(spark: SparkSession) -> None:
    found = ordered_wait(spark.range(3), FindItem(), timeout=TIMEOUT_S)

    assert found.schema["offers"].dataType == T.ArrayType(OFFER, containsNull=False)
    assert not found.schema["id"].nullable
    rows = found.collect()
    assert [(row.id, row.state, row.cents, row.offered) for row in rows] == [(n, "sold", n, n) for n in range(3)]
    assert rows[2].offers == [Row(price=1.0, seller=Row(name="a", rating=None))] * 2


def test_a_scalar_is_the_column_value_and_an_optional_one_may_be_null(spark: SparkSession) -> None:
    async def price(row: Row) -> float | None:
        await asyncio.sleep(0)
        return None if row.id == 1 else row.id * 1.5

    priced = ordered_wait(spark.range(3), price, timeout=TIMEOUT_S, keep_input=True)

    assert priced.schema.simpleString() == "struct<id:bigint,value:double>"
    assert [tuple(row) for row in priced.collect()] == [(0, 0.0), (1, None), (2, 3.0)]


def test_a_class_or_a_type_is_a_schema_too_and_extra_keys_may_be_ignored(spark: SparkSession) -> None:
    def find(row: Row) -> dict[str, Any]:
        return {"item": row.id, "by": "a"}

    found = unordered_wait(spark.range(1), find, Found, timeout=TIMEOUT_S, extra="ignore")
    length = ordered_wait(spark.range(1), lambda row: row.id + 0.5, T.DoubleType(), timeout=TIMEOUT_S)

    assert [tuple(row) for row in found.collect()] == [(0, None)]
    assert length.collect() == [Row(value=0.5)]


def test_a_captured_error_makes_required_columns_null(spark: SparkSession) -> None:
    def find(row: Row) -> Offer:
        return row.idd  # type: ignore[no-any-return]

    (row,) = ordered_wait(spark.range(1), find, timeout=TIMEOUT_S, on_error="capture").collect()

    assert (row.price, row.seller) == (None, None)
    assert row.error.message == "the row has no column 'idd'; its columns are id. Did you mean 'id'?"
