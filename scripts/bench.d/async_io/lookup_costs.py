"""What a row costs that `lookup_join` joins with a table of a million rows, next to what one writes by hand.

.venv/bin/python scripts/bench.d/async_io/lookup_costs.py [--rows 100000] [--repeats 3] [NAME...]

CPU: of the JVM and of the Python workers, without the database's. The table is in PostgreSQL, on a server that this
makes, and in SQLite. `jdbc` is Spark's own join; it needs PostgreSQL's driver for JDBC, in ~/.m2, in ~/.ivy2 or where
JDBC_JAR says. A full cache is filled in each run. `full_filled` joins once more with the cache that is there.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

TABLE_ROWS = 1_000_000
SCHEMA = "id long, item long, name string, price double"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def by_hand(conninfo: str, frame: Any) -> Any:
    def look_up(frames: Iterator[Any]) -> Iterator[Any]:
        import psycopg

        with psycopg.connect(conninfo) as connection:
            for each in frames:
                keys = each["item"].unique().tolist()
                query = "SELECT item, name, price FROM items WHERE item = any(%s)"
                found = {key: values for key, *values in connection.execute(query, [keys])}
                rows = [found.get(key, (None, None)) for key in each["item"]]
                yield each.assign(name=[name for name, _ in rows], price=[price for _, price in rows])

    return frame.mapInPandas(look_up, SCHEMA)


def sqlite_by_hand(path: str, frame: Any) -> Any:
    def look_up(frames: Iterator[Any]) -> Iterator[Any]:
        with closing(sqlite3.connect(path)) as connection:
            for each in frames:
                keys = each["item"].unique().tolist()
                query = f"SELECT item, name, price FROM items WHERE item IN ({','.join('?' * len(keys))})"
                found = {key: values for key, *values in connection.execute(query, keys)}
                rows = [found.get(key, (None, None)) for key in each["item"]]
                yield each.assign(name=[name for name, _ in rows], price=[price for _, price in rows])

    return frame.mapInPandas(look_up, SCHEMA)


def jdbc(conninfo: str, frame: Any) -> Any:
    given = dict(part.split("=") for part in conninfo.split())
    table = frame.sparkSession.read.format("jdbc").options(
        url=f"jdbc:postgresql://{given['host']}:{given['port']}/{given['dbname']}",
        dbtable="items",
        user=given["user"],
        password=given["password"],
        driver="org.postgresql.Driver",
        fetchsize=10_000,
    )
    return frame.join(table.load(), "item", "left")


def jar() -> str | None:
    if given := os.environ.get("JDBC_JAR"):
        return given
    folders = (Path.home() / ".m2", Path.home() / ".ivy2")
    return next((str(each) for folder in folders for each in sorted(folder.rglob("postgresql-*.jar"))), None)


_seen: dict[int, float] = {}
"""The seconds of each process when it was last looked at: Spark ends workers that are idle."""


def cpu_s(without: int) -> float:
    """Of this process and all below it that were ever seen here, but for those of process `without`."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(map(int, fields[11:13])) / TICKS_PER_S

    def is_ours(pid: int) -> bool:
        while pid not in (os.getpid(), without, 0, 1):
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    _seen.update({pid: took_s for pid, took_s in used.items() if is_ours(pid)})
    return sum(_seen.values())


def fill_sqlite(path: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE items (item INTEGER PRIMARY KEY, name TEXT, price REAL)")
        rows = ((item, f"item {item}", item / 2) for item in range(TABLE_ROWS))
        connection.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
        connection.commit()


def joins(conninfo: str, path: str) -> dict[str, Callable[[Any], Any]]:
    from pipeline.lookup import PostgresTable, SqliteTable
    from pipeline.spark import lookup_join

    def ours(table: Any, frame: Any, **options: Any) -> Any:
        return lookup_join(frame, table, "item", **options)

    postgres, sqlite = PostgresTable(conninfo, "items"), SqliteTable(path, "items")
    return {
        "by_hand": partial(by_hand, conninfo),
        **{cache: partial(ours, postgres, cache=cache) for cache in ("none", "partial", "full")},
        "full_filled": partial(ours, postgres, cache="full"),
        "capture": partial(ours, postgres, on_error="capture"),
        "sqlite_by_hand": partial(sqlite_by_hand, path),
        **{f"sqlite_{cache}": partial(ours, sqlite, cache=cache) for cache in ("none", "partial", "full")},
        "jdbc": partial(jdbc, conninfo),
    }


def measure(spark: Any, chosen: dict[str, Callable[[Any], Any]], rows: int, repeats: int, server: int) -> None:
    def input_of(count: int) -> Any:
        keys = spark.range(count).selectExpr("id", f"(id * 102947) % {TABLE_ROWS} AS item")
        return keys.repartition(2).localCheckpoint()

    def run(frame: Any) -> tuple[float, float]:
        cpu, began = cpu_s(server), time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return (cpu_s(server) - cpu) / rows * 1e6, time.perf_counter() - began

    frame, few = input_of(rows), input_of(200)
    best: dict[str, tuple[float, float]] = {}
    for _ in range(repeats):
        for name, join in chosen.items():
            if not name.endswith("full"):
                run(join(few))  # starts the Python workers
            joined = join(frame)
            if name == "full_filled":
                run(joined)
            took = run(joined)
            best[name] = tuple(map(min, best.get(name, took), took))  # type: ignore[assignment]
            print(f"  {name:16} {took[0]:8.1f} us a row {took[1]:8.2f} s", flush=True)
    print(f"{'':18}{'CPU, us a row':>14}{'s':>8}   : by hand (CPU, time)")
    for name, (cpu, wall) in best.items():
        peer = best.get("sqlite_by_hand" if name.startswith("sqlite") else "by_hand")
        ratios = "" if peer is None else f"   {cpu / peer[0]:6.2f} {wall / peer[1]:6.2f}"
        print(f"{name:18}{cpu:14.1f}{wall:8.2f}{ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from tests.pipeline.postgres_server import PostgresServer

    server = PostgresServer()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    driver = jar()
    if driver is not None:
        builder = builder.config("spark.jars", driver)
    with tempfile.TemporaryDirectory() as folder:
        try:
            server.start()
            server.execute(
                "CREATE TABLE items (item bigint PRIMARY KEY, name text, price double precision)",
                f"INSERT INTO items SELECT i, 'item ' || i, i / 2.0 FROM generate_series(0, {TABLE_ROWS - 1}) i",
                "VACUUM ANALYZE items",
            )
            path = f"{folder}/items.db"
            fill_sqlite(path)
            chosen = {
                n: join for n, join in joins(server.conninfo, path).items() if n in given.names or not given.names
            }
            if driver is None and chosen.pop("jdbc", None) is not None:
                print("jdbc is left out: no PostgreSQL driver for JDBC is here (JDBC_JAR)")
            with builder.getOrCreate() as spark:
                spark.sparkContext.setLogLevel("ERROR")
                assert server._process is not None
                measure(spark, chosen, given.rows, given.repeats, server._process.pid)
        finally:
            server.remove()


if __name__ == "__main__":
    main()
