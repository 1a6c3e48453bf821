"""Files that are not state stores, or not ours: refused in one line that says why, and left unchanged."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from statemachines.resourcemanager import ApplicationSubmission, Resource, StateStoreError

from ..inner import NodeCapacity, NodeLabel, Origin, RMStateStoreEvent, RMStateStoreEventType, SqliteRMStateStore
from ..stores import (
    TIMEOUT_S,
    Owner,
    app_id,
    applications_in,
    attempt_id,
    change,
    sqlite_store,
    store_app,
    store_attempt,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one application and its attempt."""
    path = tmp_path / "state.db"
    owner = Owner()
    with sqlite_store(path, owner) as store:
        store.handle(store_app(1))
        store.handle(store_attempt(1))
        owner.next_answers(2)
    return path


def refusal(path: Path) -> StateStoreError:
    """How the store refuses the file, when it is opened or read."""
    store = SqliteRMStateStore(path)
    with pytest.raises(StateStoreError) as caught, store:
        store.load_state()
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    return caught.value


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        [(version,)] = connection.execute("SELECT version FROM meta").fetchall()
    return int(version)


def test_file_of_a_newer_version_is_refused_and_not_touched(path: Path) -> None:
    supported = version_of(path)
    change(path, "UPDATE meta SET version = 7")
    before = path.read_bytes()

    error: Any = refusal(path)

    assert type(error).__name__ == "StateStoreVersionError"
    assert (error.path, error.found, error.supported) == (path, 7, supported)
    assert "version 7" in str(error)
    assert f"up to {supported}" in str(error)
    assert path.read_bytes() == before


def test_file_of_the_version_before_opens_with_all_that_is_in_it(tmp_path: Path) -> None:
    """The file was written by the program before submissions had a launch context."""
    path = tmp_path / "state.db"
    shutil.copyfile(Path(__file__).with_name("version1.db"), path)
    owner = Owner()

    with sqlite_store(path, owner) as store:
        epoch, state = store.get_and_increment_epoch(), store.load_state()
        store.handle(store_app(3))
        owner.next_answers(1)

    assert (epoch, [*state.applications]) == (1, [app_id(1), app_id(2)])
    live, ended = state.applications.values()
    assert live.data.submission == ApplicationSubmission(
        "nightly",
        Resource(1024, 1000, others=(("fpga", 1),)),
        user="alice",
        queue="root.default",
        am_host="node1",
        gpu_models=frozenset({"A100"}),
        max_attempts=3,
        priority=5,
        application_id=app_id(1),
        lifetime_s=3600,
        attempt_failures_validity_interval_ms=1000,
        keep_containers_across_attempts=True,
        node_label="",
        application_type="SPARK",
        tags=("a", "b"),
    )
    assert (live.data.submission.launch, live.data.submission.am_node_label) == (None, None)
    assert (live.data.launch_ms, [*live.attempts]) == (1500, [attempt_id(1)])
    assert (ended.data.state, ended.data.diagnostics, ended.attempts[attempt_id(2)].exit_status) == (
        "FAILED",
        "it failed",
        1,
    )
    assert applications_in(path) == [app_id(1), app_id(2), app_id(3)]
    sqlite_store(tmp_path / "new.db").stop()
    assert version_of(path) == version_of(tmp_path / "new.db")


def test_file_with_labels_alone_opens_and_takes_the_other_changes_of_nodes(path: Path) -> None:
    change(path, "INSERT INTO node_labels VALUES ('n1:1', 'gpu', NULL)")
    for statement in (
        "ALTER TABLE node_labels DROP COLUMN origin",
        "DROP TABLE node_capacities",
        "DROP TABLE host_lists",
        "DROP TABLE queue_changes",
        "UPDATE meta SET version = 2",
    ):
        change(path, statement)
    capacity = NodeCapacity(Resource(1, 2), Origin(3, "ann"))
    write = RMStateStoreEvent(RMStateStoreEventType.STORE_NODE_CAPACITY, "n1:1", capacity, notify=False)
    with sqlite_store(path) as store:
        store.handle(write)

    with sqlite_store(path) as store:
        state = store.load_state()

    assert (state.node_labels, state.node_capacities) == ({"n1:1": NodeLabel("gpu")}, {"n1:1": capacity})
    assert [*state.applications] == [app_id(1)]


def test_file_that_is_not_a_database_is_rejected_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("milk, bread\n" * 1000)

    error = refusal(path)

    assert "not an SQLite database" in str(error)
    assert path.read_text() == "milk, bread\n" * 1000


def test_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.touch()

    assert applications_in(path) == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (".", "a folder"),
        ("missing/state.db", "folder does not exist"),
        ("/proc/state.db", "unable to open database file"),
    ],
)
def test_path_where_no_file_can_be_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    assert problem in str(refusal(tmp_path / name))


_HOLD = """
import sys
from pathlib import Path
from statemachines.resourcemanager.statestore.sqlite import SqliteRMStateStore
SqliteRMStateStore(Path(sys.argv[1])).init()
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.long
def test_store_in_use_by_another_process_is_refused_until_that_one_is_killed(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            error = refusal(path)
        finally:
            process.kill()
            process.wait(TIMEOUT_S)

    assert "in use: another resource manager" in str(error)
    assert applications_in(path) == [app_id(1)]
