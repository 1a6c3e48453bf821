"""The journal as a Spark data source, for batches and streams.

    register_journal(spark)
    spark.read.format("dispatcher_journal").option("table", "events").load("JOURNAL")
    spark.readStream.format("dispatcher_journal").option("table", "transitions").load("JOURNAL")

Options:

    table     events or transitions (dispatcher.journal), or damage, which reads all bytes and has a row for each
              damaged stretch and each missing segment: segment string, offset and length long (bytes;
              null for a whole file), problem string (one line of text);
              or segments, for streams: the number of each closed segment, segment long
    columns   comma-separated names of the columns to decode, by default all; a schema given to the reader does the same
    mode      PERMISSIVE, the default: the rows of intact frames; the worker logs damage. FAILFAST: damage fails
              the task.
    since     Unix ns: skips segments and frames that ended before; rows of those on the border are not filtered
    until     Unix ns: the same for segments and frames that began at this time or later
    where     comparisons such as "seq = 17 and event_type = 'PLACED'", joined by AND: skips segments and frames
              without a row that passes; rows of the others are not filtered, so repeat it as a filter
    pushFilters   true: the filters of a query do the same by themselves. The default, where it is safe: Spark 4.1 to
              4.3 keeps a query's filters with the DataFrame, so that the next query, or the other side of a join,
              would lack rows. Set it there only for a DataFrame of a single query with one scan.

Options of streams:

    maxSegmentsPerTrigger   greatest number of segments per batch, by default unlimited; from Spark 4.2 on
    failOnDataLoss          true, the default: a segment that was removed before the stream read it is an error.
                            false: it is logged.

A batch reads the segments that are closed when it is planned; a stream reads each segment once it is closed. Times are
longs: compare them with Unix ns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from weakref import WeakSet

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import BooleanType, DataType, LongType, StringType, StructField, StructType

from dispatcher.errors import JournalError
from dispatcher.journal.conditions import Conditions
from dispatcher.journal.format.schema import TABLES, ColumnType, table_named
from dispatcher.journal.snapshot import check_journal
from dispatcher.util.functions import require_methods
from pipeline.journal.arrow import ARROW_TYPES, UnknownColumnError
from pipeline.journal.conditions import comparisons_in
from pipeline.spark.shipping import ship_packages
from pipeline.spark.source.journal_source_reading import DamageReader, FilteringReader, JournalReader, JournalReading
from pipeline.spark.source.journal_source_stream import JournalStreamReader, SegmentStreamReader

FORMAT: Final = "dispatcher_journal"
DAMAGE: Final = "damage"
SEGMENTS: Final = "segments"
_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
_KEEPS_FILTERS_APART: Final = hasattr(DataSourceReader, "pushLimit")
"""Whether Spark keeps the filters of one scan from the next scan of the same DataFrame. It has done so since it pushes
limits, too."""
_MODES: Final = ("PERMISSIVE", "FAILFAST")
_TYPES: Final[dict[ColumnType, DataType]] = {"long": LongType(), "string": StringType(), "boolean": BooleanType()}
_COLUMNS: Final[dict[str, dict[str, ColumnType]]] = {
    **{table.name: {column.name: column.type for column in table.columns} for table in TABLES},
    DAMAGE: {
        "segment": "string",
        "offset": "long",
        "length": "long",
        "problem": "string",
        "events": "long",
        "transitions": "long",
    },
    SEGMENTS: {"segment": "long"},
}

_registered: WeakSet[SparkSession] = WeakSet()


def register_journal(spark: SparkSession) -> None:
    """Register the format in a session, and let Spark push filters to it. Idempotent."""
    require_methods(spark, "spark", "a SparkSession", "createDataFrame")
    if spark not in _registered:
        ship_packages(spark)  # before: the format is registered with the files that the session sends by then
        # Without this setting Spark refuses sources that accept filters; other sources ignore it.
        spark.conf.set(_PUSHDOWN, "true")
        spark.dataSource.register(JournalSource)
        _registered.add(spark)


def local_path(path: str) -> Path:
    """The folder that a path or a file: URI names.

    Raises:
        JournalError: the URI has another scheme or a host.
    """
    if not re.match(r"^[a-zA-Z][a-zA-Z0-9+.-]*:/", path):
        return Path(path)
    parts = urlsplit(path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise JournalError(
            f"{path}: a journal is read from a folder that this process and Spark's workers see under the same path, "
            "given as /path or file:///path. Copy it to such a folder, or mount it."
        )
    return Path(unquote(parts.path))


class JournalSource(DataSource):
    """The format: parses the options. Spark calls it in Python workers on the driver's machine."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        columns = self.options.get("columns")
        return table_schema(self._table(), None if columns is None else [name.strip() for name in columns.split(",")])

    def reader(self, schema: StructType) -> DataSourceReader:
        path = check_journal(self._path())
        table, arrow = self._table(), _asked(schema, self._table())
        if table == DAMAGE:
            return DamageReader(path, arrow)
        if table == SEGMENTS:
            raise JournalError(f"{FORMAT}: the table {SEGMENTS} is for streams; list the folder instead")
        choices = ("true", "false") if _KEEPS_FILTERS_APART else ("false", "true")
        takes_filters = self._choice("pushFilters", choices) == _KEEPS_FILTERS_APART
        reader = FilteringReader if takes_filters else JournalReader
        return reader(JournalReading(path, table, arrow, self._fails_fast()), self._conditions(table))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        table = self._table()
        if table == DAMAGE:
            raise JournalError(f"{FORMAT}: the table {DAMAGE} cannot be streamed; read it as a batch")
        reading = JournalReading(self._path(), table, _asked(schema, table), self._fails_fast())
        most = self._number("maxSegmentsPerTrigger", r"0*[1-9]\d{0,8}", "a number from 1 on")
        reader = SegmentStreamReader if table == SEGMENTS else JournalStreamReader
        return reader(reading, most, self._choice("failOnDataLoss", ("true", "false")))

    def _table(self) -> str:
        table = self.options.get("table", "")
        if table not in _COLUMNS:
            raise JournalError(f"{FORMAT}: the option table is {table!r}; give it one of: {', '.join(_COLUMNS)}")
        return table

    def _path(self) -> Path:
        if "path" not in self.options:
            raise JournalError(f'{FORMAT}: the path is missing; name the journal\'s folder: .load("JOURNAL")')
        return local_path(self.options["path"])

    def _fails_fast(self) -> bool:
        return not self._choice("mode", _MODES)

    def _choice(self, option: str, choices: tuple[str, str]) -> bool:
        """Whether the option is the first of the choices, which is the default."""
        given = self.options.get(option, choices[0])
        for choice in choices:
            if given.lower() == choice.lower():
                return choice == choices[0]
        raise JournalError(f"{FORMAT}: the option {option} is {given!r}; give it one of: {', '.join(choices)}")

    def _conditions(self, table: str) -> Conditions:
        """The conditions of `where`, and of `since` and `until` on a row's times."""
        named = self.options.get("where")
        given = Conditions() if named is None else Conditions.of(comparisons_in(named), table_named(table))
        least, most = (self._number(name, r"-?\d{1,19}", "a time in Unix ns") for name in ("since", "until"))
        if least is None and most is None:
            return given
        last = None if most is None else most - 1
        return Conditions(dict.fromkeys(table_named(table).time_columns, (least, last))).and_also(given)

    def _number(self, option: str, pattern: str, what: str) -> int | None:
        given = self.options.get(option)
        if given is not None and not re.fullmatch(pattern, given):
            raise JournalError(f"{FORMAT}: the option {option} is {given!r}; give it {what}")
        return None if given is None else int(given)


def table_schema(table: str, columns: Sequence[str] | None = None) -> StructType:
    """A table's columns, by default all, in Spark's types. All are nullable, as in Spark's file sources.

    Raises:
        UnknownColumnError: the table has no such column.
    """
    types = _COLUMNS[table]
    for name in columns or ():
        if name not in types:
            raise UnknownColumnError(f"the journal's table {table} has no column {name}; it has {', '.join(types)}")
    return StructType([StructField(name, _TYPES[types[name]]) for name in (types if columns is None else columns)])


def _asked(schema: StructType, table: str) -> pa.Schema:
    """The requested schema in Arrow's types.

    Raises:
        UnknownColumnError: the table lacks a column, or has it with another type.
    """
    for asked, known in zip(schema.fields, table_schema(table, schema.names).fields, strict=True):
        if asked.dataType != known.dataType:
            raise UnknownColumnError(
                f"the journal's column {table}.{asked.name} has the type {known.dataType.simpleString()}, "
                f"not {asked.dataType.simpleString()}. Read it with its own type, and cast it."
            )
    types = _COLUMNS[table]
    return pa.schema([pa.field(one.name, ARROW_TYPES[types[one.name]], one.nullable) for one in schema.fields])
