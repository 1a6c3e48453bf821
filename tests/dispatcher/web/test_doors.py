"""Doors of daemons on this host: folders, names, modes, and sockets that nobody answers on."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from dispatcher import ConfigError
from dispatcher.web import doors


@pytest.fixture
def runtime(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's runtime folder."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def stale(path: Path) -> Path:
    """A socket that nobody answers on, as a killed process leaves it."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_without_a_runtime_folder_doors_are_in_the_temporary_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "gone"))
    monkeypatch.setattr(doors.tempfile, "gettempdir", lambda: str(folder))
    monkeypatch.setattr(doors, "_is_own_folder", lambda path: path == folder)

    assert doors.door_folder() == folder / f"dispatcher-{os.geteuid()}"


def test_a_service_manager_s_runtime_folder_in_which_the_daemon_owns_a_folder_is_used(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "_is_own_folder", lambda path: path == runtime / "dispatcher")

    assert doors.door_folder() == runtime / "dispatcher"


def test_in_a_runtime_folder_of_the_user_s_choice_no_other_daemon_is_seen(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands also looked where a daemon without that choice has its door: tests found the daemons of the host."""
    ordinary = runtime / "tmp" / f"dispatcher-{os.geteuid()}"
    monkeypatch.setattr(doors.tempfile, "gettempdir", lambda: str(runtime / "tmp"))
    with doors.listen_at(ordinary / "decoy-4711.sock", 8):
        assert doors.find_doors() == []

        monkeypatch.setenv("XDG_RUNTIME_DIR", "")
        assert [door.name for door in doors.find_doors() if door.path.parent == ordinary] == ["decoy"]


def test_a_name_with_other_characters_becomes_a_file_s_name(runtime: Path) -> None:
    assert doors.socket_path("a/../b c\n").name == f"a_.._b_c_-{os.getpid()}.sock"
    assert len(doors.socket_path("x" * 500).name) < 70
    assert doors.socket_path("").name == f"daemon-{os.getpid()}.sock"


def test_a_door_has_mode_0600_in_a_folder_of_mode_0700_whatever_the_umask(runtime: Path) -> None:
    before = os.umask(0)
    try:
        listener = doors.listen_at(doors.socket_path("central"), 8)
    finally:
        os.umask(before)

    with listener:
        path = doors.socket_path("central")
        assert (mode(path), mode(path.parent)) == (0o600, 0o700)
        assert doors.is_answering(path)


def test_doors_are_found_by_name_and_process(runtime: Path) -> None:
    with doors.listen_at(doors.socket_path("cen-tral"), 8):
        (doors.door_folder() / "notes.txt").touch()
        (doors.door_folder() / "file-1.sock").touch()

        assert doors.find_doors() == [doors.Door("cen-tral", os.getpid(), doors.socket_path("cen-tral"))]


def test_the_next_door_removes_sockets_on_which_nobody_answers_and_no_others(runtime: Path) -> None:
    with doors.listen_at(doors.socket_path("first"), 8):
        gone = stale(doors.door_folder() / "killed-4194303.sock")
        draft = stale(doors.door_folder() / ".draft7-4194304999.sock")
        own_draft = stale(doors.door_folder() / f".draft0-{os.getpid()}.sock")
        other = stale(doors.door_folder() / "something.else")

        with doors.listen_at(doors.socket_path("second"), 8):
            assert not gone.exists()
            assert not draft.exists()
            assert own_draft.exists()
            assert other.exists()
            assert doors.is_answering(doors.socket_path("first"))


def test_a_door_whose_queue_of_connections_is_full_is_not_stale(runtime: Path) -> None:
    path = doors.socket_path("busy")
    with doors.listen_at(path, 0):
        waiting = []
        try:
            for _ in range(8):
                connection = socket.socket(socket.AF_UNIX)
                waiting.append(connection)
                connection.settimeout(0)
                connection.connect(str(path))
        except BlockingIOError:
            pass

        assert doors.remove_stale(path.parent) == []
        assert path.exists()
        for each in waiting:
            each.close()


def test_in_a_folder_of_the_user_s_choice_a_killed_daemon_s_socket_is_taken_over_and_those_of_others_stay(
    folder: Path,
) -> None:
    other, own = stale(folder / "editor-4194303.sock"), stale(folder / "fixed.sock")

    with doors.listen_at(own, 8):
        assert doors.is_answering(own)
        assert other.exists()


def test_a_socket_on_which_another_daemon_answers_is_refused(folder: Path) -> None:
    with doors.listen_at(folder / "fixed.sock", 8), pytest.raises(ConfigError, match="another process listens there"):
        doors.listen_at(folder / "fixed.sock", 8)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("file.sock", "a file that is not a socket"),
        ("open/a.sock", "has mode 0755, so other users could reach in; run chmod 0700"),
        ("link/a.sock", "not a folder of the daemon's own user"),
        ("x" * 120, "too long; choose a path of at most 80 bytes"),
    ],
)
def test_a_place_that_cannot_be_a_door_is_refused_in_one_line_and_left_as_it_is(
    folder: Path, path: str, problem: str
) -> None:
    (folder / "file.sock").write_text("mine")
    (folder / "open").mkdir()
    (folder / "open").chmod(0o755)
    (folder / "real").mkdir(0o700)
    (folder / "link").symlink_to(folder / "real")
    before = sorted(folder.rglob("*"))

    with pytest.raises(ConfigError, match=problem) as caught:
        doors.listen_at(folder / path, 8)

    assert "\n" not in str(caught.value)
    assert (sorted(folder.rglob("*")), (folder / "file.sock").read_text()) == (before, "mine")


def test_a_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors.os, "geteuid", lambda: os.getuid() + 1)

    with pytest.raises(ConfigError, match="not a folder of the daemon's own user"):
        doors.make_door_folder(folder)
