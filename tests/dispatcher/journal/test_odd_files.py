"""Files in a journal's folder that are no files of a journal, whatever their names say."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher import JournalConfig, JournalError, JournalWriter
from dispatcher.journal import recover, tail, verify

from ...kit.journals import Manifest, Open, read_manifest, segment_path, segments, seqs, write_segments
from ...kit.segment_files import LAST_NUMBER

CLOSED, OPEN, MANIFEST, DRAFT, LOCK = (
    "segment-00000001.journal",
    ".segment-00000003.journal.open",
    "journal.json",
    ".journal.json.new",
    ".lock",
)

# In each folder, calls the readers and both writers, and prints how each ends, as a list.
USE_ALL = """
import json, logging, sys
from dispatcher import JournalConfig, JournalError, JournalWriter
from dispatcher.journal import EVENTS, read_rows, recover, tail, verify

logging.disable()
for path in sys.argv[1:]:
    ends = []
    for use in (
        lambda: list(read_rows(path, EVENTS)),
        lambda: tail(path),
        lambda: verify(path).problems,
        lambda: recover(path).done,
        lambda: JournalWriter(path, JournalConfig(write_ahead=True)).close(),
        lambda: verify(path).problems,
    ):
        try:
            ends.append(f"done: {use()}")
        except JournalError as error:
            ends.append(f"refused: {error}")
    print(json.dumps(ends), flush=True)
"""


@pytest.fixture
def journal_of_two(open_writer: Open, journal: Path) -> Path:
    writer = open_writer()
    write_segments(writer, 2)
    writer.close()
    return journal


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # the address of a socket is short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


KINDS: list[tuple[Callable[[Path], None], str]] = [
    (os.mkfifo, "it is a FIFO, not a file"),
    (unix_socket, "it is a socket, not a file"),
    (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a file"),
    (Path.mkdir, "Is a directory"),
]


def test_what_is_no_file_hangs_nothing_and_is_named(journal_of_two: Path, tmp_path: Path) -> None:
    """A FIFO with a segment's name kept every command waiting for a writer."""
    cases = []
    for put, kind in KINDS:
        for name in (CLOSED, OPEN, MANIFEST, DRAFT, LOCK):
            copy = shutil.copytree(journal_of_two, tmp_path / str(len(cases)))
            (copy / name).unlink(missing_ok=True)
            put(copy / name)
            cases.append((copy, kind, name))

    ended = subprocess.run(
        [sys.executable, "-c", USE_ALL, *(str(copy) for copy, _, _ in cases)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert ended.stderr == ""
    for (_, kind, name), line in zip(cases, ended.stdout.splitlines(), strict=True):
        ends = json.loads(line)
        if name in (CLOSED, OPEN):
            refused = [end for end in ends if end.startswith("refused: ")]
            assert len(refused) >= 4, ends
            assert all(kind in end and name in end for end in refused), ends
        elif name == MANIFEST:
            assert ends[2] == f"done: ('journal.json: cannot be read: {kind}',)"
            assert ends[-1] == "done: ()"
        elif name == LOCK:
            assert all(kind in end and name in end for end in ends[3:5]), ends


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "segment-2.journal",
        "segment-000000002.journal",
        "segment-00000000.journal",
        "segment-٠٠٠٠٠٠٠٢.journal",
        f"segment-{LAST_NUMBER + 1}.journal",
        f"segment-{10**30}.journal",
        ".segment-2.journal.open",
        ".segment-00000002.journal",
        "segment-00000002.journal.open",
    ],
)
def test_a_segment_under_another_name_is_not_read_and_told(journal_of_two: Path, name: str) -> None:
    """Each of its events was there twice."""
    shutil.copy(segment_path(journal_of_two, 2), journal_of_two / name)
    before = (journal_of_two / name).read_bytes()

    assert verify(journal_of_two).problems == (f"{name}: is not a segment's name: not read",)
    assert seqs(journal_of_two) == [1, 2]
    assert [row["seq"] for row in tail(journal_of_two)] == [1, 2]
    assert recover(journal_of_two).done == ()
    assert (journal_of_two / name).read_bytes() == before


def test_a_folder_with_a_misnamed_segment_is_not_taken_for_a_new_journal(open_writer: Open, journal: Path) -> None:
    journal.mkdir()
    (journal / "segment-1.journal").touch()

    with pytest.raises(JournalError, match="holds a journal already"):
        open_writer()
    assert "segment-1.journal: is not a segment's name: not read" in verify(journal).problems


def test_no_segment_is_written_behind_the_last_number(journal: Path) -> None:
    journal.mkdir()
    Manifest(1, LAST_NUMBER, True).write(journal, sync=False)

    with pytest.raises(JournalError, match=f"cannot be written: no segment number is left after {LAST_NUMBER}"):
        JournalWriter(journal, JournalConfig(write_ahead=True, on_loss="start"))


def test_a_closed_segment_that_appears_beside_the_open_one_is_not_replaced(open_writer: Open, journal: Path) -> None:
    """A copy into the folder of a live journal: the rename would have destroyed it."""
    writer = open_writer(write_ahead=True)
    writer.append_accepted(b"{}")
    segment_path(journal, 1).write_bytes(b"copied")

    with pytest.raises(JournalError, match="a closed segment of its number exists"):
        writer.roll()

    assert segment_path(journal, 1).read_bytes() == b"copied"


def test_a_folder_that_may_not_be_listed_is_no_empty_journal(
    journal_of_two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(_: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dispatcher.journal.format.segments._names_in", deny)

    for read in (verify, tail, seqs):
        with pytest.raises(JournalError, match="journal: cannot be read: Permission denied"):
            read(journal_of_two)


# -- contents ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "[" * 4000,
        '{"first":' * 450,
        "[" * 1_000_000,
        "null",
        "[]",
        '"text"',
        '{"format": 1, "first": 1, "last": NaN, "closed": true}',
        "",
    ],
    ids=len,
)
def test_a_manifest_with_anything_in_it_is_damaged(journal_of_two: Path, text: str) -> None:
    """A deeply nested one was a RecursionError."""
    (journal_of_two / "journal.json").write_text(text)

    assert verify(journal_of_two).problems == ("journal.json: is damaged",)
    assert seqs(journal_of_two) == [1, 2]
    assert recover(journal_of_two).done == (
        "journal.json: is damaged",
        "journal.json: set aside as journal.json.aside",
    )
    assert (journal_of_two / "journal.json.aside").read_text() == text
    assert verify(journal_of_two).problems == ()


@pytest.mark.parametrize(
    "values",
    [("1", 2, True), (0, 2, True), (1, -2, True), (1, 2**40, True), (1, 2.0, True), (1, 2, 1), (1, 2, True, 7)],
)
def test_a_manifest_with_impossible_values_is_damaged(journal_of_two: Path, values: tuple[object, ...]) -> None:
    """Its checksum is right."""
    Manifest(*values).write(journal_of_two, sync=False)  # type: ignore[arg-type]

    assert read_manifest(journal_of_two) == (None, "journal.json: is damaged")
    recover(journal_of_two)
    assert verify(journal_of_two).problems == ()
    assert len(segments(journal_of_two)) == 2
