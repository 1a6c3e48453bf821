"""The configuration beside a journal's segments."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher import DispatcherConfig, JournalConfig, JournalError, JournalWriter, PartitionedJournal
from dispatcher.journal import check_journal, recover, verify
from dispatcher.journal.run_config import read_run_config, write_run_config


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    JournalWriter(tmp_path / "j").close()
    return tmp_path / "j"


def test_all_keys_are_written_below_a_comment_of_one_line(journal: Path) -> None:
    write_run_config(journal, DispatcherConfig(batch_size=3), "run\nbatch_size: 4\x1b[2J")

    text = read_run_config(journal)
    assert text is not None
    assert text.startswith("# run batch_size: 4 [2J\n")
    assert "\nbatch_size: 3\n" in text
    assert {line.partition(":")[0] for line in text.splitlines()[1:]} >= set(DispatcherConfig.model_fields)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_it_has_the_permissions_of_the_journal(journal: Path, mode: int) -> None:
    (journal / "journal.json").chmod(mode)

    write_run_config(journal, DispatcherConfig(), "run")

    assert stat.S_IMODE((journal / "run.yaml").stat().st_mode) == mode


def test_in_a_partitioned_journal_it_has_the_permissions_of_the_journal(tmp_path: Path) -> None:
    journal = PartitionedJournal(tmp_path / "journal", JournalConfig(permissions="group"))
    journal.open(2)

    write_run_config(journal.path, JournalConfig(), "a run")

    assert stat.S_IMODE((journal.path / "run.yaml").stat().st_mode) == 0o640
    assert read_run_config(journal.path) is not None
    journal.close()


def test_a_folder_that_cannot_be_written_is_a_journal_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"absent/run\.yaml: cannot be written: No such file"):
        write_run_config(tmp_path / "absent", DispatcherConfig(), "run")


def test_a_long_text_is_cut_and_what_could_move_the_cursor_is_replaced(journal: Path) -> None:
    (journal / "run.yaml").write_bytes(b"a\x1b[2J\xff\n" + b"b" * 70_000)

    text = read_run_config(journal)
    assert text is not None
    assert text.startswith("a\ufffd[2J\ufffd\nbbb")
    assert text.endswith("bbb\n...")
    assert len(text) < 66_000


PLACES: list[Callable[[Path], object]] = [os.mkfifo, os.mkdir, lambda path: path.symlink_to("absent"), Path.exists]


@pytest.mark.parametrize("put", PLACES, ids=["FIFO", "folder", "broken link", "nothing"])
def test_the_journal_does_not_need_it(journal: Path, put: Callable[[Path], object]) -> None:
    put(journal / "run.yaml")

    assert read_run_config(journal) is None
    assert check_journal(journal) == journal
    assert verify(journal).problems == ()
    assert recover(journal).done == ()
