"""Files of tokens: their modes, their lines, reading them again when they change, and `dispatcher token new`."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="typer is not installed: pip install 'central-dispatcher[cli]'")

from dispatcher import ConfigError
from dispatcher.web import Principal
from dispatcher.web.tokens import TokenLine, Tokens, add_line, digest_of, new_token, read_lines

from ...kit.commands import run_here


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_new_token_is_found_by_its_line_and_is_not_in_the_file(path: Path) -> None:
    token, line = new_token("alice", "admin")
    add_line(path, line)

    tokens = Tokens(path)

    assert tokens.find(token) == Principal("alice", "admin")
    assert tokens.find(f"{token}x") is None
    assert tokens.role_of("alice") == "admin"
    assert token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_lines_are_appended_also_to_a_last_line_without_an_end(path: Path) -> None:
    write(path, "# who may enter\n\nold view " + "0" * 64)

    add_line(path, TokenLine("new", "user", "1" * 64))

    assert [line.name for line in read_lines(path)] == ["old", "new"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_file_that_others_may_read_is_refused(path: Path, mode: int) -> None:
    write(path, f"alice view {'0' * 64}\n", mode)

    with pytest.raises(ConfigError, match=f"tokens: mode {mode:04o} gives other users access; run chmod 0600 on it"):
        Tokens(path)
    with pytest.raises(ConfigError, match="gives other users access"):
        add_line(path, TokenLine("new", "user", "1" * 64))


def test_a_file_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, "")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((0o100600, 1, 1, 1, 4712, 1, 0, 0, 0, 0)))

    with pytest.raises(ConfigError, match="belongs to another user"):
        read_lines(path)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("alice view", "expected `name role sha256-of-token`"),
        ("alice view abc", "expected `name role sha256-of-token`"),
        (f"al/ice view {'0' * 64}", "expected `name role sha256-of-token`"),
        (f"alice view {'0' * 64} more", "expected `name role sha256-of-token`"),
        (f"alice boss {'0' * 64}", "boss is not a role; expected one of view, user, admin"),
    ],
)
def test_a_malformed_line_is_named_and_not_shown(path: Path, line: str, problem: str) -> None:
    write(path, f"# comment\n{line}\n")

    with pytest.raises(ConfigError, match=f"tokens, line 2: {problem}") as caught:
        read_lines(path)

    assert "0" * 64 not in str(caught.value)


def test_a_missing_file_and_a_fifo_are_refused_at_once(path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Tokens(path)

    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="a FIFO, not a file"):
        Tokens(path)


def test_a_file_that_is_no_tokens_file_at_all_is_refused(path: Path) -> None:
    path.write_bytes(b"\xff" * (1 << 21))
    path.chmod(0o600)

    with pytest.raises(ConfigError, match=r"larger than 1,048,576 bytes"):
        Tokens(path)


def test_a_change_of_a_role_is_seen_although_neither_size_nor_time_stamp_change(path: Path) -> None:
    token, line = new_token("alice", "user")
    add_line(path, line)
    changed = path.stat()
    tokens = Tokens(path, now_ns=lambda: changed.st_mtime_ns)  # the file is as new as can be

    path.write_text(path.read_text().replace("user", "view"))
    os.utime(path, ns=(changed.st_atime_ns, changed.st_mtime_ns))

    assert tokens.find(token) == Principal("alice", "view")


def test_a_settled_file_is_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, line = new_token("alice", "user")
    add_line(path, line)
    reads = []
    monkeypatch.setattr("dispatcher.web.tokens.read_lines", lambda path: reads.append(path) or [line])
    tokens = Tokens(path, now_ns=lambda: path.stat().st_mtime_ns + 10**10)

    assert all(tokens.find(token) for _ in range(100))

    assert len(reads) == 1


def test_while_the_file_is_unsound_no_token_is_valid_and_the_log_says_so_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token, line = new_token("alice", "user")
    add_line(path, line)
    tokens = Tokens(path)

    path.chmod(0o644)
    with caplog.at_level(logging.ERROR):
        assert [tokens.find(token) for _ in range(3)] == [None] * 3
    path.chmod(0o600)

    assert len(caplog.records) == 1
    assert "mode 0644 gives other users access" in caplog.text
    assert tokens.find(token) == Principal("alice", "user")


def test_the_digest_is_of_the_token_s_utf_8() -> None:
    assert digest_of("token") == "3c469e9d6c5875d37a43f353d4f88e61fcf812c66eee3457465a40b0da4153e0"
    assert digest_of("\udcff")  # what a client sends may not be Unicode text


# -- the command -------------------------------------------------------------------------------------------------------


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
        *(([name, "--role", "view"], "use up to 100 letters") for name in ("", "a\nb", "\u00e9", "x" * 101, "a/b")),
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
