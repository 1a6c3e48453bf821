"""The queries of a PostgresTable. psycopg quotes every name in them."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from pipeline.lookup.postgres.types import key_cast, read_as_text
from pipeline.lookup.schema import LookupSchema


def identifier(parts: Sequence[str]) -> sql.Identifier:
    """A name for a query without parameters."""
    return sql.Identifier(*parts)


def _escaped(*parts: str) -> sql.Identifier:
    """A name for a query with parameters, where psycopg reads every % as a placeholder."""
    return sql.Identifier(*(part.replace("%", "%%") for part in parts))


def lookup_query(table: Sequence[str], schema: LookupSchema) -> sql.Composed:
    """Selects rows, each preceded by the number of its key, from 1. The server compares by the column's own rules.

    The parameters are one list of values per key column.
    """
    arrays, names, same = [], [], []
    for at, column in enumerate(schema.key):
        cast = key_cast(column)
        name = sql.Identifier(f"k{at}")
        # uuids are sent as text, which the server can cast whatever the driver sends.
        arrays.append(sql.SQL("%s::text[]::uuid[]" if cast.array == "uuid[]" else f"%s::{cast.array}"))
        names.append(name)
        own = sql.SQL("t.{}::text" if cast.column_as_text else "t.{}").format(_escaped(column.name))
        same.append(sql.SQL("{} = k.{}").format(own, name))
    columns = [
        sql.SQL("t.{}::text" if read_as_text(each) else "t.{}").format(_escaped(each.name)) for each in schema.values
    ]
    return sql.SQL(
        "SELECT {columns} FROM unnest({arrays}) WITH ORDINALITY AS k({names}, number) JOIN {table} AS t ON {same}"
    ).format(
        columns=sql.SQL(", ").join([sql.SQL("k.number"), *columns]),
        arrays=sql.SQL(", ").join(arrays),
        names=sql.SQL(", ").join(names),
        table=_escaped(*table),
        same=sql.SQL(" AND ").join(same),
    )


def scan_query(table: Sequence[str], schema: LookupSchema) -> sql.Composed:
    """Declares the cursor `lookup_scan` over the key columns, then the others, of all rows."""
    columns = [
        sql.SQL("t.{}::text" if read_as_text(each) else "t.{}").format(sql.Identifier(each.name))
        for each in (*schema.key, *schema.values)
    ]
    return sql.SQL("DECLARE lookup_scan NO SCROLL CURSOR FOR SELECT {} FROM {} AS t").format(
        sql.SQL(", ").join(columns), identifier(table)
    )
