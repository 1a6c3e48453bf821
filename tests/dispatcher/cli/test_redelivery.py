"""Functions that cannot make the dispatcher which takes over a journal's events."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from dispatcher import JournalConfig, JournalWriter

from ...kit.commands import Ended, run_here

NUMBERS = itertools.count()

UNPRINTABLE = """
class Unprintable:
    def __repr__(self):
        raise ValueError

def make(journal):
    return Unprintable()
"""


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def", "the module cannot be imported: SyntaxError: "),
        ("import sys; sys.exit(3)", "the module cannot be imported: SystemExit: 3 ("),
        ("1 / 0", "the module cannot be imported: ZeroDivisionError: division by zero ("),
        ("import no.such.module", "the module cannot be imported: No module named 'no'"),
        ("make = 3", "has no function make"),
        ("def make(journal): raise KeyError('missing')", "the function raised KeyError: 'missing' ("),
        ("def make(): return 1", "the function raised TypeError: make() takes 0 positional arguments but 1 was given"),
        ("def make(journal): return 'x' * 10_000", "should return an AsyncDispatcher(journal=journal)"),
        (UNPRINTABLE, "it returned a Unprintable, whose repr raises ValueError"),
    ],
    ids=range(9),
)
def test_a_function_that_makes_no_dispatcher_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    name = f"module{next(NUMBERS)}_for_redelivery"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)

    for _ in range(2):  # the journal is free again
        ended = recover(tmp_path / "journal", f"{name}:make")

        assert ended.code == 2
        assert message in ended.err
        assert len(ended.err) < 1000
        assert ended.err.count("\n") == 1


@pytest.mark.parametrize("factory", ["", ":", "x", "x:", ":y", "../x:y", ".x:y", "a b:c", "a..b:c", "\x1b:y"])
def test_what_names_no_function_is_refused(tmp_path: Path, factory: str) -> None:
    ended = recover(tmp_path / "journal", factory)

    assert ended.code == 2
    assert "give it as MODULE:FUNCTION" in ended.err


def recover(journal: Path, factory: str) -> Ended:
    """Run `journal recover` on an empty journal, with the dispatcher that the function makes."""
    JournalWriter(journal, JournalConfig(write_ahead=True)).close()
    return run_here("journal", "recover", journal, "--with", factory)
