"""Damaged stores: whatever is wrong with the file, one line says so, and nothing in the file changes."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from statemachines.resourcemanager import ResourceManager, StateStoreError

from ...simulation.replays import config
from ..stores import Owner, app_id, applications_in, attempt_id, change, sqlite_store, store_app, store_attempt

APPLICATIONS = 12


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a few applications and their attempts, in its third run."""
    path = tmp_path_factory.mktemp("sound") / "state.db"
    for _ in range(2):
        with sqlite_store(path, Owner()) as store:
            store.get_and_increment_epoch()
    owner = Owner()
    with sqlite_store(path, owner) as store:
        for number in range(1, APPLICATIONS + 1):
            store.handle(store_app(number))
            store.handle(store_attempt(number))
        owner.next_answers(2 * APPLICATIONS)
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path))


def refusal(path: Path) -> str | None:
    """Why the store does not open, in one line, with its files unchanged; None: it opens."""
    before = {file: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    try:
        store = sqlite_store(path)
    except StateStoreError as error:
        message = str(error)
    else:
        with store:
            store.load_state()
            assert store.get_and_increment_epoch() >= 0
        return None
    assert {file: file.read_bytes() for file in path.parent.iterdir() if file.is_file()} == before
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    assert len(message) < 1000
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize("epoch", ["abc", "", b"\x01", -1, 2.5, 2**63 - 1, 2**31, "3\n\x1b[31m"])
def test_an_epoch_that_is_none_is_refused(path: Path, epoch: object) -> None:
    """It was read as 0, so that container ids were given out a second time."""
    change(path, "UPDATE meta SET epoch = ?", epoch)

    assert str(refusal(path)).startswith("damaged: its epoch, the number of starts, is ")


@pytest.mark.parametrize("version", ["abc", b"\x01", 0, -1, 1.5])
def test_a_version_that_is_none_is_refused(path: Path, version: object) -> None:
    change(path, "UPDATE meta SET version = ?", version)

    assert str(refusal(path)).startswith(f"damaged: its version is {version!r}. Restore it from a backup, or ")


@pytest.mark.parametrize(("statement", "rows"), [("DELETE FROM meta", 0), ("INSERT INTO meta SELECT * FROM meta", 2)])
def test_a_store_without_its_one_row_of_numbers_is_refused(path: Path, statement: str, rows: int) -> None:
    change(path, statement)

    assert str(refusal(path)).startswith(f"damaged: its table meta has {rows} rows instead of 1")


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (
            "INSERT INTO node_labels VALUES ('n1:1', x'00ff', NULL)",
            "the label of node 'n1:1' is b'\\x00\\xff', not a text",
        ),
        ("INSERT INTO node_labels VALUES (x'00', 'gpu', NULL)", "the label of node b'\\x00' is 'gpu', not a text"),
        ("DROP TABLE node_labels", "its table node_labels is missing"),
        ("DROP TABLE queue_changes", "its table queue_changes is missing"),
        (
            'INSERT INTO queue_changes VALUES (0, \'{"changes": [{"queue": 1}]}\')',
            "the record of queue_changes is not valid at changes.0.queue: Input should be a valid string",
        ),
        (
            "INSERT INTO node_labels VALUES ('n1:1', 'gpu', '{\"at_ms\": []}')",
            "the record of n1:1 is not valid at at_ms: Input should be a valid integer",
        ),
        ("DROP TABLE node_capacities", "its table node_capacities is missing"),
        ("DROP TABLE host_lists", "its table host_lists is missing"),
        (
            """INSERT INTO node_capacities VALUES ('n1:1', '{"memory_mb": -1, "vcores_milli": 1}', NULL)""",
            "no node can have the capacity of 'n1:1', <memory:-1 MB, vCores:0.001>",
        ),
        (
            """INSERT INTO host_lists VALUES (0, '{"excluded": 7}')""",
            "the record of host_lists is not valid at excluded: Input should be a valid array",
        ),
    ],
)
def test_damaged_settings_of_nodes_are_refused(path: Path, statement: str, problem: str) -> None:
    change(path, statement)

    assert str(refusal(path)).startswith(f"damaged: {problem}. Restore it from a backup, or ")


@pytest.mark.parametrize("table", ["applications", "attempts"])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("x'00ff'", "not a text"),
        ("''", "is not valid at its start"),
        ("'[]'", "is not valid at"),
        ("""'{"mood": "good"}'""", "is not valid at"),
        ("CAST(x'7b22ff' AS TEXT)", "a text in it is not UTF-8"),
        ("'{\"' || char(10, 27) || '[31m\": 1}'", "is not valid at"),
        ("replace(record, '_0003', '_0004')", " is of app"),
        ("json_set(record, '$.start_ms', 'soon')", "is not valid at start_ms"),
        ("json_set(record, '$.start_ms', 1e999)", "is not valid at"),
        (f"'{'[' * 100_000}'", "is not valid at its start"),
    ],
)
def test_a_record_of_another_kind_is_named(path: Path, table: str, value: str, problem: str) -> None:
    """It ended in a TypeError or a UnicodeDecodeError."""
    change(path, f"UPDATE {table} SET record = {value} WHERE application_id = ?", app_id(3))

    assert problem in str(refusal(path))


def test_an_attempt_without_its_application_is_named(path: Path) -> None:
    """It was a KeyError."""
    change(path, "DELETE FROM applications WHERE application_id = ?", app_id(3))

    assert refusal(path) == (
        f"damaged: {attempt_id(3)!r} has the application {app_id(3)!r}, which is not stored. "
        "Restore it from a backup, or move it away to start empty."
    )


def test_an_attempt_of_another_application_is_named(path: Path) -> None:
    change(path, "UPDATE attempts SET application_id = ? WHERE application_id = ?", app_id(4), app_id(3))

    assert f"{attempt_id(3)!r} has the application {app_id(4)!r}, which is of another" in str(refusal(path))


@pytest.mark.parametrize("statement", ["ALTER TABLE attempts RENAME record TO text", "DROP TABLE attempts"])
def test_a_store_with_another_schema_is_refused(path: Path, statement: str) -> None:
    change(path, statement)

    assert refusal(path) is not None


@pytest.mark.slow
def test_a_store_is_refused_or_read_whatever_bytes_are_changed(path: Path) -> None:
    data = path.read_bytes()
    refused = 0
    for seed in range(200):
        rng = random.Random(seed)
        changed = bytearray(data)
        length = rng.choice([1, 1, 1, 2, 16, 300])
        at = rng.randrange(len(data) - length) if seed % 4 else rng.randrange(100)  # often in the header
        for offset in range(at, at + length):
            changed[offset] ^= 1 << rng.randrange(8) if length < 16 else rng.randrange(256)
        path.write_bytes(changed)

        refused += refusal(path) is not None

        for file in path.parent.iterdir():
            file.unlink()
    assert refused > 50


def test_a_store_that_was_cut_off_is_refused_wherever_it_was(path: Path) -> None:
    data = path.read_bytes()
    for size in [*range(1, 120, 7), 511, 512, *range(513, len(data), 1001), len(data) - 1]:
        path.write_bytes(data[:size])

        assert refusal(path) is not None, size


def test_an_empty_file_beside_a_log_with_writes_is_refused(path: Path) -> None:
    """SQLite takes it for a new database, and removes the log."""
    with sqlite_store(path) as store:
        store.get_and_increment_epoch()
        shutil.copytree(path.parent, path.parent.parent / f"{path.parent.name} crashed")
    crashed = path.parent.parent / f"{path.parent.name} crashed" / path.name
    crashed.write_bytes(b"")

    assert str(refusal(crashed)).startswith(f"damaged: it is empty, but {path.name}-wal next to it is not")


@pytest.mark.parametrize("pages", [0, 3])
def test_an_empty_file_beside_a_journal_is_refused_if_it_had_pages(path: Path, pages: int) -> None:
    """SQLite leaves a journal of 0 pages where its creation of a database was killed. That was refused, too."""
    path.write_bytes(b"")
    journal = path.with_name(f"{path.name}-journal")
    journal.write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(8) + pages.to_bytes(4) + bytes(492))

    if pages:
        assert str(refusal(path)).startswith(f"damaged: it is empty, but {journal.name} next to it is not")
    else:
        with sqlite_store(path) as store:
            assert store.get_and_increment_epoch() == 0


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal"])
def test_what_is_no_file_is_refused_without_waiting(path: Path, suffix: str) -> None:
    fifo = path.with_name(path.name + suffix)
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo)

    assert refusal(path) == f"cannot be used: it is a FIFO, not a file ({fifo.name})"


def test_a_database_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    """Its journal mode was changed before it was looked at."""
    path = tmp_path / "music.db"
    change(path, "CREATE TABLE songs (title TEXT)")

    assert "another SQLite database" in str(refusal(path))


def test_a_refused_store_goes_on_once_it_is_repaired(path: Path) -> None:
    change(path, "UPDATE meta SET epoch = 'abc'")
    refusal(path)
    change(path, "UPDATE meta SET epoch = 2")

    assert len(applications_in(path)) == APPLICATIONS


# -- permissions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("permissions", "mode"), [(None, 0o600), ("group", 0o640), ("everyone", 0o644)])
def test_a_new_store_and_its_files_are_for_whom_they_are_meant(
    tmp_path: Path, permissions: str | None, mode: int
) -> None:
    path = tmp_path / "state.db"
    asked = {} if permissions is None else {"permissions": permissions}
    before = os.umask(0o077)  # the key counts, not the umask
    try:
        with ResourceManager(config(state_store={"kind": "sqlite", "path": path, **asked})):
            modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    finally:
        os.umask(before)

    assert modes == {"state.db": mode, "state.db-wal": mode}


def test_a_store_that_exists_keeps_its_permissions(path: Path) -> None:
    path.chmod(0o664)

    assert len(applications_in(path)) == APPLICATIONS

    assert path.stat().st_mode & 0o777 == 0o664
