"""`dispatcher token new`, as a user runs it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="typer is not installed: pip install 'central-dispatcher[cli]'")

from typer.testing import CliRunner

from dispatcher.cli.token import token as command
from dispatcher.web import Principal
from dispatcher.web.tokens import Tokens, digest_of

from ...kit.commands import run_command


def test_the_token_alone_is_on_standard_output_and_its_line_on_standard_error() -> None:
    done = CliRunner().invoke(command, ["new", "alice", "--role", "admin"])

    assert done.exit_code == 0
    [made] = done.stdout.splitlines()
    assert len(made) >= 43
    assert done.stderr == f"Add this line to web.tokens_file: alice admin {digest_of(made)}\n"


def test_with_a_file_the_line_goes_there_and_the_token_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "tokens"

    made = [
        CliRunner().invoke(command, ["new", name, "--role", role, "--file", str(path)]).stdout.strip()
        for name, role in (("alice", "admin"), ("bob", "view"))
    ]

    assert [Tokens(path).find(each) for each in made] == [Principal("alice", "admin"), Principal("bob", "view")]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not any(each in path.read_text() for each in made)


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["a b", "--role", "view"], "token name 'a b': use up to 100 letters, digits and . _ @ + -"),
        (["alice", "--role", "view", "--file", "{folder}"], "{folder}"),
        (["alice", "--role", "view", "--file", "{folder}/no/such"], "{folder}/no/such: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], problem: str) -> None:
    done = run_command("token", "new", *(each.format(folder=tmp_path) for each in arguments))

    assert done.returncode == 2
    assert done.stdout == ""
    assert problem.format(folder=tmp_path) in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_a_role_that_does_not_exist_is_named() -> None:
    done = run_command("token", "new", "alice", "--role", "boss")

    assert done.returncode == 2
    assert "boss" in done.stderr
    assert "Traceback" not in done.stderr
