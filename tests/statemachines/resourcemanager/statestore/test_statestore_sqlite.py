"""The store in an SQLite file: durable before it is answered, one commit for many, and what a bad write leaves."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import ServiceState

from ....kit import no_thread_is_left, tries, until
from ..inner import RMFatalEvent, RMFatalEventType, RMStateStoreEvent
from ..inner import RMStateStoreEventType as E
from ..stores import (
    TIMEOUT_S,
    Owner,
    app_id,
    applications_in,
    attempt_id,
    change,
    copy_of,
    refuse,
    sqlite_store,
    store_app,
    store_attempt,
    update_app,
    update_attempt,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


class Latch(Owner):
    """Holds the store's thread when it posts its first answer, so that writes can gather in the meantime."""

    def __init__(self) -> None:
        super().__init__(self._hold)
        self.is_held = threading.Event()
        self.go_on = threading.Event()

    def _hold(self, event: Any) -> None:
        self.is_held.set()
        assert self.go_on.wait(TIMEOUT_S)


def test_commit_waits_for_the_disk(path: Path) -> None:
    """No test can cut the power; it checks that SQLite syncs each commit."""
    store = sqlite_store(path)
    execute: Any = store._database._connection.execute  # type: ignore[union-attr]
    levels = [execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")]
    store.stop()

    assert levels == [2, "wal"]  # 2: FULL


def test_writes_that_wait_share_commits_of_the_batch_size(path: Path, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    latch, seen = Latch(), []
    owner = Owner(lambda event: (latch.post(event), seen.append(len(applications_in(copy_of(path, copies)))))[0])
    with sqlite_store(path, owner, batch_size=3) as store:
        store.handle(store_app(0))
        assert latch.is_held.wait(TIMEOUT_S)
        for number in range(1, 8):
            store.handle(store_app(number))
        latch.go_on.set()
        answers = owner.next_answers(8)

    assert answers == [f"RMApp APP_NEW_SAVED {app_id(number)}" for number in range(8)]
    assert seen == [1, 4, 4, 4, 7, 7, 7, 8]


def test_stop_commits_and_answers_queued_writes(path: Path) -> None:
    latch = Latch()
    store = sqlite_store(path, latch)
    store.start()
    store.handle(store_app(0))
    assert latch.is_held.wait(TIMEOUT_S)
    for number in range(1, 500):
        store.handle(store_app(number))
    stopping = threading.Thread(target=store.stop)

    stopping.start()
    latch.go_on.set()
    stopping.join(TIMEOUT_S)

    assert store.state is ServiceState.STOPPED
    assert len(latch.rest()) == 500
    assert applications_in(path) == [app_id(number) for number in range(500)]


def test_store_that_never_started_keeps_its_epoch(path: Path) -> None:
    store = sqlite_store(path)
    store.get_and_increment_epoch()

    store.stop()
    store.stop()

    again = sqlite_store(path)
    assert again.get_and_increment_epoch() == 1
    again.stop()


def test_write_that_comes_when_the_store_has_stopped_fails(path: Path) -> None:
    owner = Owner()
    store = sqlite_store(path, owner)
    store.start()
    store.stop()

    store.handle(store_app(1))
    store.handle(update_app(2))

    assert owner.next_answers(2) == [
        f"RMApp APP_SAVE_FAILED {app_id(1)}",
        "RMFatal STATE_STORE_OP_FAILED SqliteRMStateStore",
    ]


def test_stopped_store_leaves_one_file_and_no_thread(path: Path) -> None:
    owner = Owner()
    with no_thread_is_left(), sqlite_store(path, owner) as store:
        store.handle(store_app(1))
        owner.next()

    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("how", ["ROLLBACK", "ABORT", "FAIL"])
def test_new_application_that_cannot_be_stored_is_refused_and_takes_no_other_with_it(path: Path, how: str) -> None:
    refuse(path, app_id(2), how=how)
    latch = Latch()
    with sqlite_store(path, latch) as store:
        store.handle(store_app(0))
        assert latch.is_held.wait(TIMEOUT_S)
        for number in (1, 2, 3):  # one batch
            store.handle(store_app(number))
        latch.go_on.set()
        latch.next()
        good, bad, other = latch.next(), latch.next(), latch.next()
        state = store.store_state

    assert (good.type.name, good.entity) == ("APP_NEW_SAVED", app_id(1))
    assert (bad.type.name, bad.entity) == ("APP_SAVE_FAILED", app_id(2))
    assert bad.diagnostics == f"{app_id(2)} could not be stored: database or disk is full"
    assert (other.type.name, other.entity) == ("APP_NEW_SAVED", app_id(3))
    assert state.name == "ACTIVE"
    assert applications_in(path) == [app_id(0), app_id(1), app_id(3)]


def test_store_is_failing_from_a_failed_write_until_it_can_be_written_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resource manager that nobody uses while it is not ready would otherwise never be ready again."""
    monkeypatch.setattr("statemachines.resourcemanager.statestore.sqlite._CHECK_EVERY_S", 0.0)
    refuse(path, app_id(1))
    change(
        path,
        "CREATE TRIGGER refuse_all BEFORE UPDATE ON meta WHEN (SELECT count(*) FROM applications) = 0"
        " BEGIN SELECT RAISE(ROLLBACK, 'database or disk is full'); END",
    )
    owner = Owner()
    with sqlite_store(path, owner) as store:
        before = store.is_failing()
        store.handle(store_app(1))
        owner.next()
        checks = [store.is_failing() for _ in range(3)]
        store.dispatcher.mailbox_executor.submit(lambda: None).result(TIMEOUT_S)  # behind the checks
        during = store.unready_reason()
        store.handle(store_app(2))
        owner.next()
        until(lambda: not store.is_failing())

        assert (before, checks, during) == (False, [True] * 3, "store")
        assert (store.failures, store.unready_reason()) == (1, None)


def test_a_slow_commit_is_a_warning_while_it_runs_and_for_a_while(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, entered, leave = [100.0], threading.Event(), threading.Event()
    slowed = "statemachines.resourcemanager.statestore.database.StateDatabase.write"
    write = resolve_name(slowed)

    def slow(database: Any, writes: Any) -> Any:
        entered.set()
        assert leave.wait(TIMEOUT_S)
        return write(database, writes)

    monkeypatch.setattr(slowed, slow)
    owner = Owner()
    with sqlite_store(path, owner, clock_s=lambda: now_s[0]) as store:
        store.handle(store_app(1))
        assert entered.wait(TIMEOUT_S)
        warnings = [store.warning()]
        for passed_s in (0.9, 0.6):
            now_s[0] += passed_s
            warnings.append(store.warning())
        leave.set()
        owner.next()
        for passed_s in (9.0, 1.0):
            now_s[0] += passed_s
            warnings.append(store.warning())

    told = ("store_slow", "a commit takes 1.5 s")
    assert warnings == [None, None, told, told, None]


def test_any_other_write_that_fails_ends_the_resource_manager_and_fences_the_store(path: Path) -> None:
    refuse(path, attempt_id(1), table="attempts")
    latch = Latch()
    with sqlite_store(path, latch) as store:
        store.handle(store_app(1))
        assert latch.is_held.wait(TIMEOUT_S)
        for event in (store_app(2), store_attempt(1), store_app(3), update_attempt(1)):  # one batch
            store.handle(event)
        latch.go_on.set()
        latch.next_answers(2)
        fatal = latch.next()
        answer = latch.next_answers(1)
        store.handle(store_app(4))
    ended_with = latch.rest()

    assert isinstance(fatal, RMFatalEvent)
    assert (fatal.type, str(fatal.cause)) == (RMFatalEventType.STATE_STORE_OP_FAILED, "database or disk is full")
    assert answer == [f"RMApp APP_NEW_SAVED {app_id(3)}"]  # committed with the bad one's batch
    assert ended_with == []  # one fatal event is enough, and FENCED answers nothing
    assert store.store_state.name == "FENCED"
    assert applications_in(path) == [app_id(1), app_id(2), app_id(3)]


def test_write_of_an_invalid_record_fails_alone(path: Path) -> None:
    owner = Owner()
    with sqlite_store(path, owner) as store:
        store.handle(RMStateStoreEvent(E.STORE_APP, app_id(1), {1, 2}))
        store.handle(store_app(2))
        answers = owner.next_answers(2)

    assert answers == [f"RMApp APP_SAVE_FAILED {app_id(1)}", f"RMApp APP_NEW_SAVED {app_id(2)}"]


@pytest.fixture(scope="module")
def log_of_a_life(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose file is as it was at first: all of four applications' records are in its log."""
    path, copies = tmp_path_factory.mktemp("life") / "state.db", tmp_path_factory.mktemp("log")
    sqlite_store(path).stop()

    def keep(event: Any) -> None:
        if event.type.name == "APP_UPDATE_SAVED":
            copy_of(path, copies)

    owner = Owner(keep)
    with sqlite_store(path, owner) as store:
        for number in range(4):
            for event in (store_app(number), store_attempt(number), update_app(number, state="FINISHED")):
                store.handle(event)
                owner.next()
    return copies / path.name


@pytest.mark.long
@settings(max_examples=tries(30), deadline=None)
@given(data=st.data())
def test_power_cut_leaves_the_state_after_some_commit(log_of_a_life: Path, data: st.DataObject) -> None:
    """Whatever of the log has reached the disk, up to some byte: no commit is half there, and the first ones stay."""
    with tempfile.TemporaryDirectory() as folder:
        path = copy_of(log_of_a_life, Path(folder))
        log = path.with_name(f"{path.name}-wal")
        whole = log.read_bytes()
        kept = data.draw(st.integers(0, len(whole)), "bytes that were kept")
        log.write_bytes(whole[:kept])

        after = sqlite_store(path)
        applications = after.load_state().applications
        after.stop()

    assert list(applications) == [app_id(number) for number in range(len(applications))]
    assert all(app.data.state == "FINISHED" and app.attempts for app in list(applications.values())[:-1])
    assert len(applications) == 4 or kept < len(whole)
