"""Who may read a journal's files: their owner alone, unless the configuration says otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dispatcher import AsyncDispatcher, JournalWriter
from dispatcher.journal import recover

from ...kit.commands import run_here
from ...kit.journals import Open, after_a_crash, open_segments, segments, write_frames, write_segments


@pytest.fixture(params=[0o000, 0o077], autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """The outcome does not depend on it."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def make(journal: JournalWriter) -> AsyncDispatcher:
    return AsyncDispatcher(journal=journal)


def write_all(writer: JournalWriter) -> None:
    """Two closed ones, and an open one with an event."""
    write_segments(writer, 2)
    write_frames(writer)


def close(writer: JournalWriter) -> Path:
    writer.close()
    return writer.path


def crash_and_recover(writer: JournalWriter) -> Path:
    crashed = after_a_crash(writer.path, writer.path.with_name("crashed"))
    recover(crashed)
    assert (open_segments(crashed), len(segments(crashed))) == ([], 3)
    return crashed


def redeliver(writer: JournalWriter) -> Path:
    assert run_here("journal", "recover", close(writer), "--with", f"{__name__}:make").code == 0
    return writer.path


@pytest.mark.parametrize("end", [close, crash_and_recover, redeliver])
@pytest.mark.parametrize(
    ("config", "file_mode", "folder_mode"),
    [({}, 0o600, 0o700), ({"permissions": "group"}, 0o640, 0o750), ({"permissions": "everyone"}, 0o644, 0o755)],
)
def test_a_journal_is_for_whom_it_is_meant(
    open_writer: Open,
    tmp_path: Path,
    config: dict[str, str],
    file_mode: int,
    folder_mode: int,
    end: Callable[[JournalWriter], Path],
) -> None:
    folder = tmp_path / "journals" / "run"

    writer = open_writer(folder, write_ahead=True, **config)
    write_all(writer)
    while_open = {path.name: mode(path) for path in folder.iterdir()}
    ended = end(writer)

    assert len(while_open) == 5  # segments, manifest and lock
    assert set(while_open.values()) == {mode(path) for path in ended.iterdir()} == {file_mode}
    assert [mode(path) for path in (folder, folder.parent)] == [folder_mode] * 2


def test_a_folder_that_exists_keeps_its_permissions(open_writer: Open, journal: Path) -> None:
    journal.mkdir()
    journal.chmod(0o775)

    write_all(open_writer())

    assert mode(journal) == 0o775
    assert {mode(path) for path in journal.iterdir()} == {0o600}


def test_a_new_folder_keeps_the_group_of_its_parent(open_writer: Open, tmp_path: Path) -> None:
    tmp_path.chmod(0o2755)

    open_writer(tmp_path / "journal", permissions="group")

    assert (tmp_path / "journal").stat().st_mode & 0o7777 == 0o2750


def test_a_draft_that_a_crash_left_does_not_keep_its_permissions(open_writer: Open, journal: Path) -> None:
    journal.mkdir()
    (journal / ".journal.json.new").touch(0o666)

    open_writer().close()

    assert mode(journal / "journal.json") == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_journal_that_root_repairs_stays_its_owners(open_writer: Open, journal: Path, tmp_path: Path) -> None:
    """The manifest is readable by its owner alone: the daemon could not start again."""
    write_all(open_writer())
    crashed = after_a_crash(journal, tmp_path / "crashed")
    for path in (crashed, *crashed.iterdir()):
        os.chown(path, 4321, 4322)

    recover(crashed)

    assert {(path.stat().st_uid, path.stat().st_gid) for path in crashed.iterdir()} == {(4321, 4322)}
