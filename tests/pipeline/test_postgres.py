"""Which of PostgreSQL's errors a retry may help against."""

from __future__ import annotations

import pytest

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'central-dispatcher[postgres]'")

from pipeline.postgres import is_passing, safe_message  # noqa: E402

TO = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '


@pytest.mark.parametrize(
    "text",
    [
        TO + 'FATAL:  password authentication failed for user "reader"',
        TO + 'FATAL:  database "shop" does not exist',
        TO + 'FATAL:  role "reader" does not exist',
        TO + 'FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "reader", database "shop", no encryption',
        TO + "fe_sendauth: no password supplied",
        TO + 'FATAL:  permission denied for database "shop"\nDETAIL:  User does not have CONNECT privilege.',
        TO + "server does not support SSL, but SSL was required",
        # Of two addresses, and of two attempts, with and without SSL:
        f"{TO}FATAL:  password authentication failed\n{TO[19:]}FATAL:  password authentication failed",
    ],
)
def test_a_refusal_is_no_outage(text: str) -> None:
    assert not is_passing(psycopg.OperationalError(text))


@pytest.mark.parametrize(
    "text",
    [
        TO + "Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?",
        TO + "FATAL:  the database system is starting up",
        TO + "FATAL:  sorry, too many clients already",
        TO + "server closed the connection unexpectedly",
        TO + "timeout expired",
        '[Errno -2] Name or service not known: "database.example"',
        'connection to server on socket "/tmp/.s.PGSQL.5432" failed: No such file or directory',
        # One address refuses the password, the other does not answer: that one may be the right one.
        f'{TO}FATAL:  password authentication failed for user "a"\n{TO[19:]}Connection refused',
        "the connection is lost",
    ],
)
def test_an_outage_is_worth_a_retry(text: str) -> None:
    assert is_passing(psycopg.OperationalError(text))


@pytest.mark.parametrize(
    ("kind", "passing"),
    [
        ("UndefinedTable", False),
        ("InsufficientPrivilege", False),
        ("InvalidPassword", False),
        ("InvalidCatalogName", False),
        ("SyntaxError", False),
        ("QueryCanceled", True),
        ("AdminShutdown", True),
        ("CannotConnectNow", True),
        ("TooManyConnections", True),
        ("DeadlockDetected", True),
        ("LockNotAvailable", True),
    ],
)
def test_the_state_of_an_answer_says_whether_it_lasts(kind: str, passing: bool) -> None:
    assert is_passing(getattr(psycopg.errors, kind)("")) is passing


def test_a_message_has_one_line_and_no_password() -> None:
    error = psycopg.OperationalError("cannot use s3cret\n  here")

    assert safe_message(error, {"password": "s3cret", "host": "here"}) == "cannot use *** here"
