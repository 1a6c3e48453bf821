"""The schema of results, taken from what functions and classes declare. No Spark runs."""

from __future__ import annotations

import datetime as dt
import enum
import functools
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import pytest
from pydantic import BaseModel, Field, computed_field
from pyspark.sql import Row
from pyspark.sql import types as T

from pipeline.spark.async_io.result_schema import accepts_none, schema_of, value_type_of
from pipeline.streaming import AsyncFunction

X = TypeVar("X")
Sku = NewType("Sku", str)


class Kind(enum.Enum):
    NEW = "new"
    USED = "used"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Offer:
    price: float
    seller: str | None = None


class Price(BaseModel):
    item: int
    offers: list[Offer]
    cents: Annotated[Decimal, T.DecimalType(10, 2)]
    note: str | None = Field(default=None, max_length=10)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def best(self) -> float:
        return min(offer.price for offer in self.offers)


class Found(TypedDict):
    id: int
    at: NotRequired[dt.datetime]


class Maybe(TypedDict, total=False):
    id: int


class Counts(TypedDict):
    words: Mapping[str, int | None]


class Point(NamedTuple):
    x: float
    y: float


@dataclass
class Tree:
    children: list[Tree]


@dataclass
class Holder(Generic[X]):
    content: X


@dataclass
class Deep:
    places: dict[str, list[Holder[Any]]]


def returning(declared: Any) -> Callable[[Row], Any]:
    def function(row: Row) -> Any:
        raise NotImplementedError

    function.__annotations__["return"] = declared
    return function


def value(data_type: T.DataType, nullable: bool = False) -> T.StructType:
    return T.StructType([T.StructField("value", data_type, nullable)])


def columns(*fields: tuple[str, T.DataType, bool]) -> T.StructType:
    return T.StructType([T.StructField(*field) for field in fields])


OFFER = columns(("price", T.DoubleType(), False), ("seller", T.StringType(), True))


NULLABLE_OFFER = columns(("price", T.DoubleType(), True), ("seller", T.StringType(), True))
SCALARS: dict[Any, T.DataType] = {
    bool: T.BooleanType(),
    int: T.LongType(),
    float: T.DoubleType(),
    int | float: T.DoubleType(),
    str: T.StringType(),
    Sku: T.StringType(),
    Kind: T.StringType(),
    Level: T.LongType(),
    Literal["a", "b"]: T.StringType(),
    bytes: T.BinaryType(),
    Decimal: T.DecimalType(38, 18),
    dt.date: T.DateType(),
    dt.datetime: T.TimestampType(),
    dt.timedelta: T.DayTimeIntervalType(),
    Annotated[int, T.ShortType()]: T.ShortType(),
    Annotated[int, "a note"]: T.LongType(),
}
OPTIONALS = [float | None, None | float, Annotated[float | None, T.DoubleType()]]
MANY = [list[Offer], Offer | list[Offer], Sequence[Offer], Iterable[Offer], "list[Offer]", Iterator[Offer]]
MANY += [Generator[Offer, str, str], AsyncIterator[Offer], AsyncGenerator[Offer, str], Awaitable[Offer]]
"""Any number of results, or the one that is awaited."""
PRICE = columns(
    ("item", T.LongType(), False),
    ("offers", T.ArrayType(OFFER, False), False),
    ("cents", T.DecimalType(10, 2), False),
    ("note", T.StringType(), True),
    ("best", T.DoubleType(), False),
)


@pytest.mark.parametrize(
    ("declared", "schema"),
    [
        *((declared, value(data_type)) for declared, data_type in SCALARS.items()),
        *((declared, value(T.DoubleType(), nullable=True)) for declared in OPTIONALS),
        *((declared, OFFER) for declared in MANY),
        (list[list[float | None]], value(T.ArrayType(T.DoubleType(), True))),
        (Offer | None, NULLABLE_OFFER),
        (list[Offer | None], NULLABLE_OFFER),
        (Price, PRICE),  # its computed fields as well
        (Found, columns(("id", T.LongType(), False), ("at", T.TimestampType(), True))),
        (Maybe, columns(("id", T.LongType(), True))),
        (Point, columns(("x", T.DoubleType(), False), ("y", T.DoubleType(), False))),
        (Counts, columns(("words", T.MapType(T.StringType(), T.LongType(), True), False))),
    ],
)
def test_a_return_type_is_a_schema(declared: Any, schema: T.StructType) -> None:
    assert schema_of(returning(declared)) == schema


@pytest.mark.parametrize("declared", [*OPTIONALS, Offer | None])
def test_a_type_that_may_be_none_accepts_none(declared: Any) -> None:
    assert accepts_none(returning(declared))
    assert not accepts_none(returning(list[declared]))


def test_for_a_column_a_list_is_an_array() -> None:
    assert value_type_of(returning(list[float])).data_type == T.ArrayType(T.DoubleType(), False)


# -- what a function declares ------------------------------------------------------------------------------------------


async def find_offer(row: Row) -> Offer:
    raise NotImplementedError


class Finder(AsyncFunction[Row, Offer]):
    async def async_invoke(self, value: Row) -> list[Offer]:
        raise NotImplementedError


class Silent(AsyncFunction[Row, Offer]):
    async def async_invoke(self, value):  # type: ignore[no-untyped-def]
        raise NotImplementedError


class Wrapping(AsyncFunction[Row, X]):
    async def async_invoke(self, value: Row) -> X:
        raise NotImplementedError


class Wrapped(Wrapping[Offer]): ...


class InBatches(AsyncFunction[Row, Offer]):
    async def async_invoke_batch(self, values: list[Row]) -> list[list[Offer] | Exception]:
        raise NotImplementedError


class Yielding(AsyncFunction[Row, Offer]):
    async def async_invoke_batch(self, values: list[Row]) -> AsyncIterator[list[Offer] | Exception]:
        yield NotImplementedError()


class Callables:
    def __call__(self, row: Row) -> Offer:
        raise NotImplementedError

    def method(self, row: Row) -> Offer:
        raise NotImplementedError


@functools.wraps(find_offer)
def wrapped(row: Row) -> Any:
    raise NotImplementedError


@pytest.mark.parametrize(
    "function",
    [
        find_offer,
        functools.partial(find_offer),
        wrapped,
        Finder(),
        Silent(),
        Wrapped(),
        InBatches(),
        Yielding(),
        Callables(),
        Callables().method,
    ],
    ids=lambda function: getattr(function, "__name__", type(function).__name__),
)
def test_every_kind_of_function_declares_its_results(function: Any) -> None:
    assert schema_of(function) == OFFER


def test_a_class_of_the_enclosing_function_is_found_if_the_body_uses_it() -> None:
    @dataclass
    class Local:
        size: int

    def measure(row: Row) -> Local:
        return Local(1)

    assert schema_of(measure) == columns(("size", T.LongType(), False))


# -- what has no schema ------------------------------------------------------------------------------------------------


def untyped(row):  # type: ignore[no-untyped-def]
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (untyped, "untyped: .* declares no return type; annotate it, or give the schema"),
        (lambda row: 1, "<lambda>: .* declares no return type"),
        (returning(None), "returns None"),
        (returning(Row), "a Row does not declare its columns"),
        (returning(Any), "Any has no counterpart"),
        (returning(object), "object has no counterpart"),
        (returning(dict[str, float]), "does not name the columns; use a dataclass"),
        (returning(tuple[int, str]), "does not name the columns"),
        (returning(dict), "dict has no counterpart"),
        (returning(list), "list does not say what it contains"),
        (returning(Iterator), "Iterator does not say what it contains"),
        (returning(Offer | Point), r"Offer \| Point is more than one type"),
        (returning(list[Offer] | None), "a list or None"),
        (returning(Tree), "field children.*: .*Tree contains itself"),
        (returning(Deep), r"field places\[value\]\[\]: .*Holder"),
        (returning([int]), "int.* has no counterpart"),
        (returning({"price": float}), "price.* has no counterpart"),
        (returning("1 / 0"), "'1 / 0' cannot be evaluated .*division by zero"),
        (returning("Missing"), "'Missing' cannot be evaluated .*give the schema"),
    ],
)
def test_a_type_without_a_schema_is_refused_with_its_reason(function: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        schema_of(function)
