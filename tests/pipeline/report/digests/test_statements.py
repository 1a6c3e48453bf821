"""SQL statements that build on each other, run several at a time."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("duckdb")

import duckdb

from pipeline.report.digests.statements import Statement, needed, run_statements

SQL = ("TABLE base AS SELECT 2 AS n", "TABLE twice AS SELECT n * 2 AS n FROM base", "VIEW other AS SELECT 7 AS n")
TIMEOUT_S = 60.0


def test_a_statement_sees_what_the_statements_before_it_made() -> None:
    with duckdb.connect() as database:
        run_statements(database, [*map(Statement.create, SQL), Statement.create("TABLE pair AS FROM twice, other")])

        assert database.execute("FROM pair").fetchall() == [(4, 7)]


def test_statements_that_do_not_need_each_other_run_at_a_time() -> None:
    both = threading.Barrier(2, timeout=TIMEOUT_S)
    statements = [Statement(name, "SELECT 1", lambda _: both.wait()) for name in ("one", "other")]

    with duckdb.connect() as database:
        run_statements(database, statements, at_once=2)

    assert not both.broken


def test_a_statement_waits_for_those_that_it_names_even_if_they_wait() -> None:
    done: list[str] = []
    names = ("a", "b", "c")
    statements = [
        Statement(name, f"FROM {earlier}", lambda _, name=name: done.append(name))
        for name, earlier in zip(names, ("nothing", *names), strict=False)
    ]

    with duckdb.connect() as database:
        run_statements(database, statements, at_once=3)

    assert done == ["a", "b", "c"]


def test_a_failing_statement_fails_the_run_and_interrupts_the_others() -> None:
    endless = "TABLE endless AS SELECT sum(a.range * b.range) AS n FROM range(10000000) a, range(10000000) b"

    with duckdb.connect() as database, pytest.raises(duckdb.CatalogException, match="missing"):
        run_statements(database, [Statement.create(endless), Statement.create("TABLE bad AS FROM missing")])


def test_only_what_some_tables_need_is_kept() -> None:
    statements = [*map(Statement.create, SQL)]

    assert [one.name for one in needed(statements, ["twice"])] == ["base", "twice"]
    assert [one.name for one in needed(statements, ["other"])] == ["other"]
