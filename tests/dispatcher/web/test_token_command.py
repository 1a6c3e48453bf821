"""`dispatcher token new`, as a user runs it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="typer is not installed: pip install 'central-dispatcher[cli]'")

from ...kit.commands import run_here
from .conftest import digest_of


def test_the_token_alone_is_on_standard_output_and_its_line_on_standard_error() -> None:
    done = run_here("token", "new", "alice", "--role", "admin")

    assert done.code == 0
    [made] = done.out.splitlines()
    assert len(made) >= 43
    assert done.err == f"Add this line to web.tokens_file: alice admin {digest_of(made)}\n"


def test_with_a_file_the_line_goes_there(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    users = [("alice", "admin"), ("bob", "view")]

    made = [run_here("token", "new", name, "--role", role, "--file", path).out.strip() for name, role in users]

    lines = [f"{name} {role} {digest_of(token)}" for (name, role), token in zip(users, made, strict=True)]
    assert path.read_text().splitlines() == lines
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["a b", "--role", "view"], "token name 'a b': use up to 100 letters, digits and . _ @ + -"),
        (["alice", "--role", "view", "--file", "{folder}"], "{folder}"),
        (["alice", "--role", "view", "--file", "{folder}/no/such"], "{folder}/no/such: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], problem: str) -> None:
    done = run_here("token", "new", *(each.format(folder=tmp_path) for each in arguments))

    assert (done.code, done.out) == (2, "")
    assert problem.format(folder=tmp_path) in done.err
    assert done.err.count("\n") == 1


def test_a_role_that_does_not_exist_is_named() -> None:
    done = run_here("token", "new", "alice", "--role", "boss")

    assert (done.code, "boss" in done.err, "Traceback" in done.err) == (2, True, False)
