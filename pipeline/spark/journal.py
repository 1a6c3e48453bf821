"""The event journal as Spark tables, with the columns that the journal's schema declares."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, LongType, StringType, StructField, StructType

from dispatcher.errors import JournalError
from dispatcher.journal.schema import EVENTS, TRANSITIONS, ColumnType, Table

_TYPES: dict[ColumnType, DataType] = {"long": LongType(), "string": StringType(), "boolean": BooleanType()}
_UNPARSED = "_unparsed"
_QUOTED_CHARACTERS = 200

PAYLOADS = {
    ("RMAppEventType", "START"): "name string, user string, queue string",
    ("RMContainerEventType", "START"): (
        "application string, attempt string, node string, kind string, memory_mb long, vcores_milli long, "
        "gpus long, gpu_milli long, gpu_devices array<int>"
    ),
    ("RMNodeEventType", "STARTED"): (
        "host string, rack string, memory_mb long, vcores_milli long, gpus long, gpu_model string"
    ),
}
"""What the payloads that the jobs read have in them, in DDL, by event class and type; any key can be left out."""


class JournalTables(NamedTuple):
    """A journal's two tables; columns as in `dispatcher.journal.schema`, rows in any order: sort by `seq`."""

    events: DataFrame
    transitions: DataFrame


def table_schema(table: Table) -> StructType:
    """A journal table's columns in Spark's types.

    All are nullable, as in everything that Spark reads from files; `read_journal` holds the columns to the
    nullability that they are declared with.
    """
    return StructType([StructField(column.name, _TYPES[column.type]) for column in table.columns])


def read_journal(spark: SparkSession, path: str | Path) -> JournalTables:
    """The closed segments of the journal in the folder `path`, which can also be a URI that Spark reads.

    Lists the segments at once and reads them when a job runs. A table without a segment is empty.
    A job that meets a damaged line fails and says which: a line that is no JSON, has a value of another type,
    lacks a column that is never null, or has a payload unlike `PAYLOADS`. Figures that quietly leave rows out
    would be worse than none, and what a crash cut off is never in a closed segment.

    Raises:
        JournalError: `path` is not a journal folder, or holds no closed segment.
    """
    return JournalTables(*(_refusing_damage(lines) for lines in read_lines(spark, path)))


def read_lines(spark: SparkSession, path: str | Path) -> JournalTables:
    """As `read_journal`, but with damaged lines, and a column more: problem string, null if the line is sound."""
    root = _location(path)
    events, transitions = _segments(spark, root, EVENTS), _segments(spark, root, TRANSITIONS)
    if events is None and transitions is None:
        raise JournalError(
            f"{path}: no journal here: neither {EVENTS.name}/*.jsonl nor {TRANSITIONS.name}/*.jsonl exists. "
            "Name the folder that the journal was written to, after its first segment was closed."
        )
    return JournalTables(
        _empty(spark, EVENTS) if events is None else _with_problem(events, EVENTS, _payload_problem()),
        _empty(spark, TRANSITIONS) if transitions is None else _with_problem(transitions, TRANSITIONS),
    )


def check_lines(lines: JournalTables) -> None:
    """Run a job over what `read_lines` gave; on return no line has a problem.

    Raises:
        JournalError: one has. Of several, the first in alphabetical order is told.
    """
    found = lines.events.select("problem").unionAll(lines.transitions.select("problem"))
    [row] = found.agg(F.min("problem").alias("problem")).collect()
    if row["problem"] is not None:
        raise JournalError(f"damaged journal: {row['problem']}. Run: dispatcher journal verify")


def _location(path: str | Path) -> str:
    # Spark would resolve a relative path against the folder in which its JVM was started.
    text = str(path)
    return text if "://" in text else str(Path(text).absolute())


def _segments(spark: SparkSession, root: str, table: Table) -> DataFrame | None:
    """The table's lines, with what is no JSON in a column of its own; None if it has no closed segment."""
    reader = (
        spark.read.schema(table_schema(table).add(_UNPARSED, StringType()))
        .option("mode", "PERMISSIVE")
        .option("columnNameOfCorruptRecord", _UNPARSED)
        .option("pathGlobFilter", "*.jsonl")
    )
    try:
        lines = reader.json(f"{root}/{table.name}")
        return lines if lines.inputFiles() else None
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None


def _empty(spark: SparkSession, table: Table) -> DataFrame:
    return spark.createDataFrame([], table_schema(table).add("problem", StringType()))


def _with_problem(lines: DataFrame, table: Table, *more: Column) -> DataFrame:
    absent = [
        F.when(F.col(column.name).isNull(), F.lit(column.name)) for column in table.columns if not column.nullable
    ]
    problem = F.coalesce(
        F.concat(F.lit("has a line that is no row: "), F.substring(_UNPARSED, 1, _QUOTED_CHARACTERS)),
        F.when(F.coalesce(*absent).isNotNull(), F.concat(F.lit("has a row without "), F.concat_ws(", ", *absent))),
        *more,
    )
    names = table_schema(table).names
    return lines.select(*names, F.concat(F.col("_metadata.file_name"), F.lit(" "), problem).alias("problem"))


def _payload_problem() -> Column:
    problem = F.lit(None).cast("string")
    for (event_class, event_type), schema in PAYLOADS.items():
        parsed = F.from_json("payload", f"{schema}, {_UNPARSED} string", {"columnNameOfCorruptRecord": _UNPARSED})
        told = F.concat(
            F.lit(f"has a {event_class} {event_type} whose payload is not {{{schema}}}: "),
            F.substring(parsed[_UNPARSED], 1, _QUOTED_CHARACTERS),
        )
        is_one = (F.col("event_class") == event_class) & (F.col("event_type") == event_type)
        problem = F.when(is_one, told).otherwise(problem)
    return problem


def _refusing_damage(lines: DataFrame) -> DataFrame:
    told = F.concat(F.lit("damaged journal: "), F.col("problem"))
    # A filter, for it alone is sure to run: a check inside a column goes when no job asks for that column.
    return lines.where(F.when(F.col("problem").isNull(), True).otherwise(F.raise_error(told))).select(
        *(name for name in lines.columns if name != "problem")
    )
