"""Results in an SQLite file; what all stores do is in test_store_contract."""

from __future__ import annotations

import os
import pickle
import sqlite3
import stat
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.streaming import ResultCacheAwayError, ResultCacheError, SqliteResults
from pipeline.streaming.cache import sqlite

from ....kit import TIMEOUT_S, in_threads
from ....kit.databases import sqlite_file
from ....kit.forked import in_child
from .stores import CacheRequest, dump_results, opened

Make = Callable[..., SqliteResults]


@pytest.fixture
def make(sqlite_results: Make) -> Make:
    return sqlite_results


def test_it_is_in_wal_mode_and_leaves_one_file_however_many_make_it(make: Make) -> None:
    cache = make()
    in_threads(*[lambda: make().connect("f").close()] * 6)
    with closing(cache.connect("f")):
        present = {path.name.partition("-owner-")[0] for path in Path(cache.path).parent.iterdir()}

    assert present == {"results.db", "results.db-wal", "results.db-shm"}
    assert [path.name for path in Path(cache.path).parent.iterdir()] == ["results.db"]
    with closing(sqlite3.connect(cache.path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")  # Python 3.12: there are threads
def test_a_forked_child_does_not_keep_an_owner_alive(make: Make) -> None:
    with ExitStack() as stack:
        asker = opened(stack, make())
        asker("a", wants_call=True)

        def check() -> None:
            opened_files = [os.path.realpath(f"/proc/self/fd/{number}") for number in range(256)]
            assert not any("-owner-" in name for name in opened_files)

        assert in_child(check) is None
        assert make().unknown() == []


def test_an_owner_whose_file_cannot_be_removed_has_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "not yours")

    with ExitStack() as stack:
        ending = opened(stack, make())
        ending("a", wants_call=True)
        monkeypatch.setattr(Path, "unlink", refuse)
        ending.session.close()

        assert [each.key for each in make().unknown()] == ['"a"']


def test_it_pickles_with_an_absolute_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    cache = SqliteResults("results.db", key="id", version="b", on_unknown="capture")

    copy = pickle.loads(pickle.dumps(cache))

    assert copy == cache
    assert copy.path == tmp_path / "results.db"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, "path is ''"),
        ({"path": 7}, "path is 7"),
        ({"expires_after_s": 0}, "expires_after_s is 0"),
        ({"expires_after_s": "60"}, "expires_after_s is '60'"),
        ({"retry_for_s": -1}, "retry_for_s is -1"),
        ({"busy_timeout_s": -1}, "busy_timeout_s is -1"),
        ({"on_unknown": "fail"}, "on_unknown is 'fail'"),
        ({"version": 1.5}, r"version is 1\.5"),
        ({"name": ""}, "name is ''"),
        ({"key": []}, r"key is \[\]"),
        ({"key": [1]}, r"key is \[1\]"),
        ({"key": 5}, "key is 5"),
    ],
)
def test_an_option_that_is_not_possible_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        SqliteResults(**{"path": "results.db", **options})


# --- files that cannot be used ---


def no_database(path: Path) -> None:
    path.write_text("this is no database, and long enough for a header " * 50)


def of_another_program(path: Path) -> None:
    sqlite_file(path, "CREATE TABLE orders (id)")


def of_another_format(path: Path) -> None:
    SqliteResults(path).connect("f").close()
    sqlite_file(path, "PRAGMA user_version = 9")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_database, "the file is damaged, or not an SQLite database"),
        (of_another_program, "the file is an SQLite database of another program"),
        (of_another_format, "the file has the format 9, and this version reads the format 1"),
        (Path.mkdir, "this user cannot open and write the file"),
        (lambda path: path.parent.rmdir(), "folder .* does not exist"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_left_alone(
    make: Make, spoil: Callable[[Path], object], message: str
) -> None:
    path = Path(make().path)
    spoil(path)
    before = path.read_bytes() if path.is_file() else b""

    with pytest.raises(ResultCacheError, match=rf"results\.db: .*{message}"):
        make().connect("f")

    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_damaged_file_is_named(make: Make) -> None:
    path = Path(make().path)
    with ExitStack() as stack:
        asker = opened(stack, make())
        for number in range(50):
            asker.call(number, "x" * 500)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xee" * (len(content) - 4096)
    path.write_bytes(content)

    def read() -> None:
        with ExitStack() as stack:
            error = opened(stack, make())(3).error
        assert error is not None
        raise error

    with pytest.raises(ResultCacheError, match=r"results\.db: the file is damaged"):
        read()


def test_a_damaged_result_is_no_result(make: Make) -> None:
    with ExitStack() as stack:
        asker = opened(stack, make())
        asker.call("a", 1)
        with closing(sqlite3.connect(make().path)) as other, other:
            other.execute("UPDATE results SET value = x'00ff'")

        assert "stored results cannot be read" in str(asker("a").error)
        assert "stored results cannot be read" in str(asker("b").error)
        with pytest.raises(ResultCacheError, match="stored results cannot be read"):
            asker.session.flush()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_named(make: Make) -> None:
    folder = Path(make().path).parent
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(ResultCacheError, match=r"results\.db: .*(cannot open|cannot be written)"):
            make().connect("f")
    finally:
        folder.chmod(stat.S_IRWXU)


def test_a_session_asks_a_locked_file_again(make: Make) -> None:
    with ExitStack() as stack:
        asker = opened(stack, make(busy_timeout_s=0.01))
        with closing(sqlite3.connect(make().path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            request, answered = asker.send("a", wants_call=True)
            was_answered = answered.wait(0.1)
            other.execute("COMMIT")
        assert answered.wait(TIMEOUT_S)

        assert (was_answered, request.is_mine) == (False, True)


def test_a_session_that_gives_up_answers_everything(make: Make) -> None:
    failures: list[ResultCacheError] = []
    with ExitStack() as stack:
        asker = opened(stack, make(busy_timeout_s=0.01, retry_for_s=0.0))
        asker.session.on_failure(failures.append)
        with closing(sqlite3.connect(make().path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            claimed = asker("a", wants_call=True)
            asked = asker("b")

        assert isinstance(claimed.error, ResultCacheAwayError)
        assert "another process has locked it" in str(claimed.error)
        assert asked.error is claimed.error
        assert failures == [claimed.error]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_session_whose_listener_and_logging_raise_answers_everything(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_foreign(*_: object) -> None:
        raise RuntimeError("foreign")

    with ExitStack() as stack:
        asker = opened(stack, make(busy_timeout_s=0.01, retry_for_s=60.0))
        asker.session.on_failure(is_foreign)
        monkeypatch.setattr(caplog.handler, "emit", is_foreign)
        with closing(sqlite3.connect(make().path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            _, claimed = asker.send("a", wants_call=True)
            assert not claimed.wait(0.1)
            other.execute("DROP TABLE results")
            other.execute("COMMIT")
        assert claimed.wait(TIMEOUT_S)

        assert "no such table" in str(asker("b").error)
        with pytest.raises(ResultCacheError, match="no such table"):
            asker.session.flush()


def test_a_session_that_is_closed_answers_everything(make: Make) -> None:
    """What its last step kept waiting it answered twice, which lost the answers behind it."""
    answers: list[CacheRequest] = []
    with ExitStack() as stack:
        one, other = opened(stack, make()), opened(stack, make())
        claim = one("a", wants_call=True)
        other("c", wants_call=True)
        waiting = [CacheRequest(other.session.key_of(key), answers.extend, wants_call=True) for key in "ac"]
        for request in waiting:
            other.session.submit(request)
        other.session.close()
        late = other("b")
        other.session.finish(claim.key, dump_results([1]))
        with pytest.raises(ResultCacheError, match="was closed"):
            other.session.flush()

        assert sorted(answers, key=waiting.index) == waiting
        assert ["was closed" in str(each.error) for each in (*waiting, late)] == [True, True, True]


# --- network file systems ---


def test_a_network_file_system_is_warned_of(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite, "file_system_of", lambda _: "nfs4")

    make().connect("f").close()

    assert "is on a network file system (nfs4)" in caplog.text


def test_the_innermost_mount_says_the_file_system(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    folder = tmp_path / "a b"
    folder.mkdir()
    inner = str(tmp_path).replace(" ", "\\040")
    mounts.write_text(f"disk / ext4 rw 0 0\nserver:/x {inner}/a\\040b nfs4 rw 0 0\nother {inner}/a xfs rw 0 0\n")

    assert sqlite.file_system_of(folder, str(mounts)) == "nfs4"
    assert sqlite.file_system_of(tmp_path, str(mounts)) == "ext4"
    assert sqlite.file_system_of(folder, str(tmp_path / "none")) == ""
