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
from pipeline.streaming import AsyncFunction, RetryStrategy

from .task_rows import ResultSchemaError, checker, row_check, row_maker

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


PRICE = T.StructType().add("price", "double")
NOTE = T.StructType().add("price", "double").add("note", "string")
RATED = T.StructType().add("rating", "double").add("note", "string")
VECTOR = T.StructType().add("vector", T.ArrayType(T.DoubleType()))
INSIDE = T.StructType().add("inner", PRICE).add("id", "long")
DEEP = T.StructType().add("list", T.ArrayType(PRICE)).add("map", T.MapType(T.StringType(), PRICE))
OFFER = schema_from(Offer)
ITEM = schema_from(Item)
WITHOUT_COMPUTED = T.StructType([field for field in ITEM.fields if field.name != "offered"])

SOLD = Item(id=1, state=State.SOLD, cents=Decimal("1.5"), offers=[Offer(1.5, Seller("a", 4.0))])
NOTED = {"price": 1.5, "note": "x"}
MORE = [NOTED, Row(note="x", price=1.5), Open(price=1.5, note="x"), Offer(1.5, Seller("a"))]
"""They name more than the schema has."""


@pytest.mark.parametrize(
    ("schema", "result", "expected"),
    [
        # A value is that of the only column, as the row is that has it.
        *((PRICE, each, (1.5,)) for each in (1.5, (1.5,), {"price": 1.5}, Row(price=1.5), Open(price=1.5))),
        *((NOTE, each, (1.5, "x")) for each in ((1.5, "x"), Row(1.5, "x"), Row(note="x", price=1.5), NOTED)),
        (NOTE, row_maker(["price", "note"])((1.5, "x")), (1.5, "x")),
        (NOTE, {"price": 1.5}, (1.5, None)),
        (VECTOR, [0.5, 1.0], ([0.5, 1.0],)),
        # A dataclass and a model are matched by name, also inside another. A computed field may be left out.
        (OFFER, Offer(1.5, Seller("a")), (1.5, ("a", None))),
        (ITEM, SOLD, (1, "sold", Decimal("1.5"), [(1.5, ("a", 4.0))], 1)),
        (WITHOUT_COMPUTED, SOLD, (1, "sold", Decimal("1.5"), [(1.5, ("a", 4.0))])),
    ],
)
def test_a_result_is_a_row_of_the_schema(schema: T.StructType, result: Any, expected: tuple[Any, ...]) -> None:
    for check in (row_check(schema, dt.UTC), checker(schema)):
        found = check(result)

        assert found == expected
        assert isinstance(found, tuple)


@pytest.mark.parametrize(
    ("schema", "result", "expected"),
    [
        *((PRICE, each, (1.5,)) for each in MORE),
        (DEEP, {"list": [NOTED], "map": {"a": NOTED}, "more": 1}, ([(1.5,)], [("a", (1.5,))])),
        (RATED, Seller("a", 4.0), (4.0, None)),  # what an object lacks is null
    ],
)
def test_names_beyond_the_schema_can_be_ignored(schema: T.StructType, result: Any, expected: tuple[Any, ...]) -> None:
    assert row_check(schema, dt.UTC, "ignore")(result) == expected


@pytest.mark.parametrize(
    ("schema", "result", "message"),
    [
        (PRICE, "a", r"the column price .* 'a' \(str\) is not of type double"),
        (INSIDE, (1.5, 1), r"the column inner .* 1.5 \(float\) is not a row"),
        *((PRICE, each, r'names (note|seller); the columns are price. .*extra="ignore"') for each in MORE),
        (DEEP, {"list": [NOTED], "map": {}}, r"list\[0\]"),
    ],
)
def test_another_result_is_refused_with_its_column(schema: T.StructType, result: Any, message: str) -> None:
    with pytest.raises(ResultSchemaError, match=message):
        row_check(schema, dt.UTC)(result)


def test_the_class_decides_for_each_result() -> None:
    """One task may return results of several classes."""
    check = row_check(schema_from(Seller), dt.UTC)

    found = [check(each) for each in (Seller("a"), {"name": "b"}, ("c", 1.0), Seller("d"))]

    assert found == [("a", None), ("b", None), ("c", 1.0), ("d", None)]


@pytest.mark.parametrize("schema", [PRICE, schema_from(Seller)])
def test_none_is_a_row_of_nulls_only_if_the_function_says_so(schema: T.StructType) -> None:
    nullable = T.StructType([T.StructField(field.name, field.dataType) for field in schema.fields])

    assert row_check(nullable, dt.UTC, none_is_row=True)(None) == (None,) * len(schema.fields)
    with pytest.raises(TypeError, match="returned None"):
        checked_function(lambda _: None, row_check(nullable, dt.UTC), None)(0)


def test_a_retry_may_judge_a_none_that_is_a_result() -> None:
    retry = RetryStrategy.fixed_delay(1, 1, retry_on_result=lambda results: list(results) == [None])
    function = checked_function(lambda _: None, row_check(PRICE, dt.UTC, none_is_row=True), retry, none_is_row=True)

    results = function(0)

    assert (list(results), results.wants_retry) == ([(None,)], True)


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
