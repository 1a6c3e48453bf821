"""The names of columns, where Spark's way to Python and back takes fewer of them than Spark itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import types as T


def with_plain_names(df: DataFrame) -> DataFrame:
    """`df`, or if `mapInArrow` could not find its columns by their names, the same with other names.

    It looks each of them up as if a user had written it: a dot leads into a struct, and of two columns with the same
    name it does not know which is meant.
    """
    names = df.columns
    is_plain = len({name.lower() for name in names}) == len(names) and not any(
        "." in name or "`" in name for name in names
    )
    return df if is_plain else df.toDF(*(f"column{place}" for place in range(len(names))))


def require_distinct(struct: T.StructType, path: str = "") -> None:
    """Spark takes no struct back from Arrow, and no table, that has two fields of the same name.

    Raises:
        ValueError: there are two, in `struct` or in a struct within it.
    """
    for name, count in Counter(struct.names).items():
        if count > 1:
            raise ValueError(f"the output would have {count} columns {path}{name}; rename them, so that it has one")
    for field in struct.fields:
        for inner in _structs(field.dataType):
            require_distinct(inner, f"{path}{field.name}.")


def _structs(data_type: T.DataType) -> Iterator[T.StructType]:
    if isinstance(data_type, T.StructType):
        yield data_type
    elif isinstance(data_type, T.ArrayType):
        yield from _structs(data_type.elementType)
    elif isinstance(data_type, T.MapType):
        yield from _structs(data_type.keyType)
        yield from _structs(data_type.valueType)
    elif isinstance(data_type, T.UserDefinedType):
        yield from _structs(data_type.sqlType())
