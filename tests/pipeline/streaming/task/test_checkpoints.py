"""A folder of checkpoints: each whole or not there, the last few kept, and nothing foreign restored."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from enum import IntEnum
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.streaming import (
    Checkpoint,
    CheckpointError,
    CheckpointStorage,
    JsonSerializer,
    PickleSerializer,
    StreamRecord,
    Watermark,
)
from pipeline.streaming.task import checkpoints

from ....kit import tries

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


@pytest.mark.long
@settings(max_examples=tries(15))
@given(json_values, st.lists(st.lists(elements, max_size=4), max_size=3), json_values, st.booleans())
def test_a_checkpoint_comes_back_as_it_was(position: Any, states: Any, output: Any, finished: bool) -> None:
    taken = checkpoint(
        7, input_state=position, operator_states=states, outputs=5, output_state=output, is_finished=finished
    )

    assert checkpoints.decode(CheckpointStorage("unused").encode(taken), JsonSerializer(), "here") == taken


@given(st.integers(0, 400), st.binary(min_size=1, max_size=3))
@settings(max_examples=tries(80))
def test_whatever_is_changed_or_cut_is_not_restored(at: int, garbage: bytes) -> None:
    data = CheckpointStorage("unused").encode(checkpoint(operator_states=[[StreamRecord({"key": [1, 2.5, None]}, 3)]]))
    at = min(at, len(data) - 1)

    for damaged in (data[:at], data[:at] + garbage + data[at + len(garbage) :], data + garbage):
        if damaged != data:
            with pytest.raises(CheckpointError):
                checkpoints.decode(damaged, JsonSerializer(), "here")


def test_the_newest_is_restored_from_a_folder_that_is_made_when_needed(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path / "a" / "b")
    assert (storage.latest(), storage.next_id()) == (None, 1)
    for number in (1, 2, 10):
        store(storage, checkpoint(number))

    assert CheckpointStorage(tmp_path / "a" / "b").latest() == checkpoint(10)
    assert storage.next_id() == 11


def test_the_last_checkpoints_and_savepoints_are_kept_and_foreign_files_left_alone(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path, keep=2)
    (tmp_path / "notes.txt").write_text("mine")
    store(storage, checkpoint(1, is_savepoint=True))

    for number in range(2, 7):
        store(storage, checkpoint(number))

    assert ids(storage) == [1, 5, 6]
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(ValueError, match="keep is 0"):
        CheckpointStorage(tmp_path, keep=0)


def test_a_later_version_is_refused_and_not_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = CheckpointStorage(tmp_path)
    store(storage, checkpoint(1))
    with monkeypatch.context() as later:
        later.setattr(checkpoints, "VERSION", checkpoints.VERSION + 1)
        store(storage, checkpoint(2))

    with pytest.raises(CheckpointError, match=f"version {checkpoints.VERSION + 1}") as refused:
        storage.latest()
    assert type(refused.value) is CheckpointError


def test_a_checkpoint_without_the_version_in_its_body_is_read(tmp_path: Path) -> None:
    """As the first releases wrote them."""
    storage = CheckpointStorage(tmp_path)
    path = store(storage, checkpoint(1))
    body = path.read_bytes().partition(b"\n")[2].replace(b'"version":1,', b"")
    path.write_bytes(b"stream-task-checkpoint 1 %d %s\n%s" % (len(body), sha256(body).hexdigest().encode(), body))

    assert storage.latest() == checkpoint(1)


def flip_every_bit(path: Path) -> Iterator[None]:
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in range(8) if at < whole.index(b"\n") // 3 else (at % 8,):
            path.write_bytes(whole[:at] + bytes((whole[at] ^ 1 << bit,)) + whole[at + 1 :])
            yield


@pytest.mark.long
def test_a_bit_flipped_anywhere_in_the_newest_leaves_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A flip in the name of the format was taken for a file of another kind, and kept the task from starting."""
    storage = CheckpointStorage(tmp_path)
    for number in (1, 2, 3):
        store(storage, checkpoint(number))

    for _ in flip_every_bit(tmp_path / "checkpoint-00000003"):
        caplog.clear()
        assert storage.latest("t") == checkpoint(2)
        assert [record.levelname for record in caplog.records] == ["WARNING"]


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "mine").touch()


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def listening_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))


def stale_copy(path: Path) -> None:
    shutil.copy(path.parent / "checkpoint-00000001", path)


def archive(path: Path) -> None:
    path.write_bytes(b"PK\3\4 something else")


def whole_body(body: bytes) -> Callable[[Path], object]:
    digest = sha256(body).hexdigest().encode()
    return lambda path: path.write_bytes(b"stream-task-checkpoint 1 %d %s\n%s" % (len(body), digest, body))


CUT = {
    "empty": b"",
    "half a header": b"stream-task",
    "header only": b"stream-task-checkpoint 1 90 ab",
    "zeros": b"\0" * 50,
}
WRONG = [
    folder,
    fifo,
    dangling_link,
    link_to_itself,
    listening_socket,
    stale_copy,
    archive,
    *(pytest.param(lambda path, content=content: path.write_bytes(content), id=name) for name, content in CUT.items()),
    pytest.param(whole_body(b"[]"), id="a list"),
    pytest.param(whole_body(b"{}"), id="no keys"),
    pytest.param(whole_body(b"\xff"), id="no text"),
    pytest.param(whole_body(b"[" * 100_000), id="nested too deeply"),
]


@pytest.mark.parametrize("spoil", WRONG)
def test_whatever_is_wrong_with_the_newest_leaves_the_one_before(
    tmp_path: Path, spoil: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    """A folder was a bare IsADirectoryError; the open of a FIFO waited for ever."""
    storage = CheckpointStorage(tmp_path)
    for number in (1, 2, 3):
        store(storage, checkpoint(number))
    spoil(tmp_path / "checkpoint-00000003")

    assert storage.latest("t") == checkpoint(2)

    assert [record.getMessage().count("checkpoint-00000003 ") for record in caplog.records] == [1]
    store(storage, checkpoint(storage.next_id()))
    assert storage.latest("t") == checkpoint(4)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOENT])
def test_a_newest_that_the_system_cannot_read_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    storage = CheckpointStorage(tmp_path)
    store(storage, checkpoint(1))
    unreadable = store(storage, checkpoint(2))
    open_file = os.open

    def open_or_fail(path: Path, *options: Any) -> int:
        if path == unreadable:
            raise OSError(number, os.strerror(number), str(path))
        return open_file(path, *options)

    monkeypatch.setattr(os, "open", open_or_fail)

    assert storage.latest() == checkpoint(1)
    assert f"checkpoint-00000002 cannot be read: {os.strerror(number)}. Trying" in caplog.text


@pytest.mark.parametrize("spoil", [spoil for spoil in WRONG if spoil is not stale_copy])
def test_if_none_is_whole_one_line_says_what_is_wrong_with_each(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    storage = CheckpointStorage(tmp_path, keep=9)
    for number in range(1, 8):
        spoil(store(storage, checkpoint(number)))

    with pytest.raises(CheckpointError, match=r"no checkpoint in .*: checkpoint-00000007 \(.*\), .* and 2 more\.") as e:
        storage.latest("t")
    assert "\n" not in str(e.value)


def test_damaged_checkpoints_take_no_place_of_whole_ones(tmp_path: Path) -> None:
    """Two damaged ones and one new one counted as the three to keep, and the last whole ones were removed."""
    storage = CheckpointStorage(tmp_path, keep=2)
    for number in (1, 2):
        store(storage, checkpoint(number))
    (tmp_path / "checkpoint-00000003").mkdir()
    (tmp_path / "checkpoint-00000004").write_bytes(b"")
    assert storage.latest() == checkpoint(2)

    store(storage, checkpoint(5))
    store(CheckpointStorage(tmp_path / "other"), checkpoint(1))

    assert [path.name[-1] for path in storage.paths()] == ["2", "3", "4", "5"]
    store(storage, checkpoint(6))
    assert [path.name[-1] for path in storage.paths()] == ["3", "5", "6"]  # a folder is not removed


def test_a_folder_that_cannot_hold_checkpoints_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    (tmp_path / "odd" / "lock").mkdir(parents=True)

    for name in ("taken", "odd"):
        with pytest.raises(CheckpointError, match=rf"{name} cannot hold checkpoints"):
            CheckpointStorage(tmp_path / name).acquire()


def test_the_checkpoint_of_another_task_or_serializer_is_refused(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path, serializer=PickleSerializer())
    store(storage, checkpoint(1, task="orders"))

    with pytest.raises(CheckpointError, match="is of task 'orders', not of 'payments'"):
        storage.latest("payments")
    with pytest.raises(CheckpointError, match="written by serializer 'pickle'"):
        CheckpointStorage(tmp_path).latest()


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_failed_write_leaves_the_checkpoint_before(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = CheckpointStorage(tmp_path)
    store(storage, checkpoint(1))

    def fail(*_: object, **__: object) -> None:
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


RING: list[Any] = []
RING.append(RING)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ((1, 2), "value is a tuple"),
        ({"a": [1, {2, 3}]}, r"value\['a'\]\[1\] is a set"),
        ({"a": {1: "b"}}, r"value\['a'\] has the key 1"),
        (Colour.RED, "value is a Colour"),
        (b"bytes", "value is a bytes"),
        (RING, "nested too deeply, or contains itself; JSON cannot hold it"),
    ],
)
def test_what_json_would_not_give_back_is_refused_with_its_place(value: Any, where: str, tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path)

    advice = "" if value is RING else ".*PickleSerializer"
    with pytest.raises(CheckpointError, match=f"operator 0 cannot be stored.*{where}{advice}"):
        store(storage, checkpoint(operator_states=[[StreamRecord(value)]]))
    assert storage.paths() == []


def test_pickle_stores_what_json_refuses(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path, serializer=PickleSerializer())
    taken = checkpoint(operator_states=[[StreamRecord((1, {2}), 5), Watermark(5)]], input_state=(1, b"2"))

    store(storage, taken)

    assert storage.latest() == taken


# -- permissions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("permissions", "file_mode", "folder_mode"),
    [(None, 0o600, 0o700), ("private", 0o600, 0o700), ("group", 0o640, 0o750), ("everyone", 0o644, 0o755)],
)
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_checkpoints_are_for_whom_they_are_meant(
    tmp_path: Path, permissions: Any, file_mode: int, folder_mode: int, umask: int
) -> None:
    folder = tmp_path / "tasks" / "t"
    before = os.umask(umask)
    try:
        storage = CheckpointStorage(folder, **({} if permissions is None else {"permissions": permissions}))
        storage.acquire()
        store(storage, checkpoint(1))
        store(storage, checkpoint(2, is_savepoint=True))
        storage.release()
    finally:
        os.umask(before)

    assert len(list(folder.iterdir())) == 3
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {file_mode}
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [folder_mode] * 2


@pytest.mark.parametrize("name", ["checkpoint-00000001.part", "lock"])
def test_a_fifo_in_the_folder_keeps_no_task_waiting(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    storage = CheckpointStorage(tmp_path)

    if name == "lock":
        with pytest.raises(CheckpointError, match="it is a FIFO, not a file"):
            storage.acquire()
    else:
        assert storage.load(store(storage, checkpoint())) == checkpoint()
