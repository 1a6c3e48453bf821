"""A folder of checkpoints: each whole or not there, the last few kept, and nothing foreign restored."""

from __future__ import annotations

import logging
import os
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.util.files import PermissionsName
from pipeline.streaming.elements import StreamRecord, Watermark
from pipeline.streaming.errors import CheckpointError, DamagedCheckpointError
from pipeline.streaming.task.checkpoints import (
    VERSION,
    Checkpoint,
    CheckpointStorage,
    JsonSerializer,
    PickleSerializer,
    Recovery,
    decode,
)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
elements = st.one_of(
    st.builds(StreamRecord, json_values, st.none() | st.integers()), st.builds(Watermark, st.integers())
)


def checkpoint(checkpoint_id: int = 1, **fields: Any) -> Checkpoint:
    return Checkpoint(**{"checkpoint_id": checkpoint_id, "task": "t", "taken_at_ms": 0, "input_state": 0, **fields})


def store(storage: CheckpointStorage, taken: Checkpoint) -> Path:
    return storage.write(taken.checkpoint_id, storage.encode(taken), is_savepoint=taken.is_savepoint)


def ids(storage: CheckpointStorage) -> list[int]:
    return [storage.load(path).checkpoint_id for path in storage.paths()]


@given(json_values, st.lists(st.lists(elements, max_size=4), max_size=3), json_values, st.booleans())
def test_a_checkpoint_comes_back_as_it_was(position: Any, states: Any, output: Any, finished: bool) -> None:
    taken = checkpoint(
        7, input_state=position, operator_states=states, outputs=5, output_state=output, is_finished=finished
    )

    assert decode(CheckpointStorage("unused").encode(taken), JsonSerializer(), "here") == taken


@given(st.integers(0, 400), st.binary(min_size=1, max_size=3))
@settings(max_examples=200)
def test_whatever_is_changed_or_cut_is_not_restored(at: int, garbage: bytes) -> None:
    data = CheckpointStorage("unused").encode(checkpoint(operator_states=[[StreamRecord({"key": [1, 2.5, None]}, 3)]]))
    at = min(at, len(data) - 1)

    for damaged in (data[:at], data[:at] + garbage + data[at + len(garbage) :], data + garbage):
        if damaged != data:
            with pytest.raises(CheckpointError):
                decode(damaged, JsonSerializer(), "here")


def test_the_newest_is_restored(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path)
    assert storage.latest() is None
    for number in (1, 2, 10):
        store(storage, checkpoint(number))

    newest = CheckpointStorage(tmp_path).latest()

    assert newest is not None
    assert newest.checkpoint_id == 10
    assert storage.next_id() == 11


def test_a_missing_folder_is_created_when_needed(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path / "a" / "b")

    assert storage.latest() is None
    assert storage.next_id() == 1
    store(storage, checkpoint())
    assert ids(storage) == [1]


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path, keep=2)

    for number in range(1, 6):
        store(storage, checkpoint(number))

    assert ids(storage) == [4, 5]


def test_savepoints_are_kept_and_foreign_files_left_alone(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path, keep=1)
    (tmp_path / "notes.txt").write_text("mine")
    store(storage, checkpoint(1, is_savepoint=True))

    for number in (2, 3, 4):
        store(storage, checkpoint(number))

    assert ids(storage) == [1, 4]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_at_least_one_checkpoint_has_to_be_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep is 0"):
        CheckpointStorage(tmp_path, keep=0)


@pytest.mark.parametrize("content", [b"", b"stream-task", b"stream-task-checkpoint 1 90 ab", b"\0" * 50])
def test_a_damaged_checkpoint_is_skipped_with_a_warning_for_the_one_before(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    storage = CheckpointStorage(tmp_path)
    store(storage, checkpoint(1))
    store(storage, checkpoint(2)).write_bytes(content)

    with caplog.at_level(logging.WARNING):
        restored = storage.latest()

    assert restored is not None
    assert restored.checkpoint_id == 1
    assert "checkpoint-00000002" in caplog.text
    assert storage.next_id() == 3


def test_a_folder_of_damaged_checkpoints_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path)
    store(storage, checkpoint(1)).write_bytes(b"")

    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read: checkpoint-00000001"):
        storage.latest()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path)
    store(storage, checkpoint(1))
    (tmp_path / "checkpoint-00000002").write_bytes(b"PK\3\4 something else")

    with pytest.raises(CheckpointError, match="is not a checkpoint") as refused:
        storage.latest()
    assert not isinstance(refused.value, DamagedCheckpointError)


def test_a_later_version_is_refused_and_not_skipped(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path)
    store(storage, checkpoint(1))
    path = store(storage, checkpoint(2))
    path.write_bytes(path.read_bytes().replace(b" %d " % VERSION, b" %d " % (VERSION + 1), 1))

    with pytest.raises(CheckpointError, match=f"version {VERSION + 1}"):
        storage.latest()


def test_the_checkpoint_of_another_task_is_refused(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path)
    store(storage, checkpoint(1, task="orders"))

    with pytest.raises(CheckpointError, match="is of task 'orders', not of 'payments'"):
        storage.latest("payments")


def test_the_checkpoint_of_another_serializer_is_refused(tmp_path: Path) -> None:
    store(CheckpointStorage(tmp_path, serializer=PickleSerializer()), checkpoint(1))

    with pytest.raises(CheckpointError, match="written by serializer 'pickle'"):
        CheckpointStorage(tmp_path).latest()


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_failed_write_leaves_the_checkpoint_before(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = CheckpointStorage(tmp_path)
    store(storage, checkpoint(1))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if step == "replace":
            patch.setattr(Path, "replace", fail)
        elif step == "fsync":
            patch.setattr(os, "fsync", fail)
        else:
            patch.setattr(Path, "open", fail)
        with pytest.raises(OSError, match="No space left"):
            store(storage, checkpoint(2))

    restored = storage.latest()
    assert restored is not None
    assert restored.checkpoint_id == 1
    store(storage, checkpoint(3))
    assert not list(tmp_path.glob("*.part"))


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ((1, 2), "value is a tuple"),
        ({"a": [1, {2, 3}]}, r"value\['a'\]\[1\] is a set"),
        ({"a": {1: "b"}}, r"value\['a'\] has the key 1"),
        (Colour.RED, "value is a Colour"),
        (b"bytes", "value is a bytes"),
    ],
)
def test_what_json_would_not_give_back_is_refused_with_its_place(value: Any, where: str, tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path)

    with pytest.raises(CheckpointError, match=f"operator 0 cannot be stored.*{where}.*PickleSerializer"):
        store(storage, checkpoint(operator_states=[[StreamRecord(value)]]))
    assert storage.paths() == []


def test_a_value_in_itself_is_refused(tmp_path: Path) -> None:
    value: list[Any] = []
    value.append(value)

    with pytest.raises(CheckpointError, match=r"the input's state .* nested too deeply"):
        store(CheckpointStorage(tmp_path), checkpoint(input_state=value))


def test_pickle_stores_what_json_refuses(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path, serializer=PickleSerializer())
    taken = checkpoint(operator_states=[[StreamRecord((1, {2}), 5), Watermark(5)]], input_state=(1, b"2"))

    store(storage, taken)

    assert storage.latest() == taken


def test_a_folder_belongs_to_one_running_task(tmp_path: Path) -> None:
    first, second = CheckpointStorage(tmp_path), CheckpointStorage(tmp_path)
    first.acquire()

    with pytest.raises(CheckpointError, match="another running task"):
        second.acquire()

    first.release()
    second.acquire()
    second.release()


def test_a_recovery_says_what_may_repeat() -> None:
    recovery = Recovery.of(checkpoint(4, operator_states=[[StreamRecord(1)], [StreamRecord(2)]], outputs=9))

    assert recovery.redone == (StreamRecord(1), StreamRecord(2))
    assert str(recovery) == (
        "restored from checkpoint 4: 2 elements are processed again, outputs after number 9 may repeat"
    )


# -- permissions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("permissions", "file_mode", "folder_mode"),
    [("private", 0o600, 0o700), ("group", 0o640, 0o750), ("everyone", 0o644, 0o755)],
)
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_checkpoints_are_for_whom_they_are_meant(
    tmp_path: Path, permissions: PermissionsName, file_mode: int, folder_mode: int, umask: int
) -> None:
    folder = tmp_path / "tasks" / "t"
    before = os.umask(umask)
    try:
        storage = CheckpointStorage(folder, permissions=permissions)
        storage.acquire()
        store(storage, checkpoint(1))
        store(storage, checkpoint(2, is_savepoint=True))
        storage.release()
    finally:
        os.umask(before)

    assert len(list(folder.iterdir())) == 3
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {file_mode}
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [folder_mode] * 2


def test_by_default_checkpoints_are_private(tmp_path: Path) -> None:
    path = store(CheckpointStorage(tmp_path / "t"), checkpoint())

    assert [file.stat().st_mode & 0o777 for file in (path, path.parent)] == [0o600, 0o700]


@pytest.mark.parametrize("name", ["checkpoint-00000001.part", "lock"])
def test_a_fifo_in_the_folder_keeps_no_task_waiting(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    storage = CheckpointStorage(tmp_path)

    if name == "lock":
        with pytest.raises(OSError, match="it is a FIFO, not a file"):
            storage.acquire()
    else:
        assert storage.load(store(storage, checkpoint())) == checkpoint()


def test_a_checkpoint_that_is_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "checkpoint-00000001")

    with pytest.raises((OSError, CheckpointError), match="it is a FIFO, not a file"):
        CheckpointStorage(tmp_path).load(tmp_path / "checkpoint-00000001")
