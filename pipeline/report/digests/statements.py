"""Runs SQL statements that build on each other, several at once.

One statement on a small table keeps one core busy, and many of a report's tables do not need each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

AT_ONCE: Final = 2
"""Statements that run at a time. With more, each would have less memory; DuckDB runs a large one on all cores."""
_WORD: Final = re.compile(r"\w+")


class Statement(NamedTuple):
    """Makes the table or view `name`, when `run` is called with a connection; `sql` names what it is made of."""

    name: str
    sql: str
    run: Callable[[DuckDBPyConnection], object]

    @staticmethod
    def create(sql: str) -> Statement:
        """`sql`: TABLE or VIEW, a name, and so on. A temporary one would be seen by one connection only."""
        _, name, rest = sql.split(maxsplit=2)
        return Statement(name, rest, lambda database: database.execute(f"CREATE {sql}"))


def needed(statements: Sequence[Statement], names: Iterable[str]) -> list[Statement]:
    """The statements that make these tables and all that they are made of, in the same order."""
    wanted, kept = set(names), []
    for one in reversed(statements):
        if one.name in wanted:
            kept.append(one)
            wanted.update(_WORD.findall(one.sql))
    return kept[::-1]


def run_statements(database: DuckDBPyConnection, statements: Sequence[Statement], at_once: int = AT_ONCE) -> None:
    """Run each statement as soon as the earlier ones that make what it names are done. Blocks.

    Raises what the first failing statement raises, after the running ones have been interrupted.
    """
    waiting = [(one, set(_WORD.findall(one.sql))) for one in statements]
    running: dict[Future[object], tuple[str, DuckDBPyConnection]] = {}
    with ThreadPoolExecutor(at_once, "statements") as threads:
        try:
            while waiting or running:
                unfinished = {name for name, _ in running.values()}
                still: list[tuple[Statement, set[str]]] = []
                for one, words in waiting:
                    if len(running) < at_once and not words & unfinished:
                        connection = database.cursor()
                        running[threads.submit(one.run, connection)] = one.name, connection
                    else:
                        still.append((one, words))
                    unfinished.add(one.name)
                waiting = still
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    del running[future]
                    future.result()
        finally:
            for _, connection in running.values():
                connection.interrupt()
