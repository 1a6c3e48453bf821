from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline.spark.report.follow_store import DigestStore


class Words:
    """A store of words, and what Spark does around it."""

    def __init__(self, folder: Path) -> None:
        self._checkpoint = folder / "checkpoint"
        self.store = DigestStore(folder / "kept", self._checkpoint, self._digest, self._merge)

    def _digest(self, rows: Any, folder: Path) -> None:
        (folder / "words").write_text(rows)

    def _merge(self, parts: Sequence[Path], folder: Path) -> None:
        (folder / "words").write_text(" ".join((part / "words").read_text() for part in parts))

    def write(self, batch: int, words: str) -> None:
        self.store(cast(Any, words), batch)

    def commit(self, batch: int) -> None:
        commits = self._checkpoint / "commits"
        commits.mkdir(parents=True, exist_ok=True)
        (commits / str(batch)).touch()
        (commits / f".{batch}.crc").touch()

    def read(self) -> str:
        return " ".join((folder / "words").read_text() for folder in self.store.committed())


@pytest.fixture
def words(tmp_path: Path) -> Words:
    return Words(tmp_path)


def test_nothing_is_kept_before_the_first_batch(words: Words) -> None:
    assert (words.read(), words.store.last_batch()) == ("", -1)


def test_batch_counts_once_it_is_committed_and_once_only(words: Words) -> None:
    words.write(0, "a b")
    words.commit(0)
    words.write(1, "c")  # killed before the commit

    assert words.read() == "a b"

    words.write(1, "c")  # run again
    words.commit(1)

    assert words.read() == "a b c"


def test_what_a_killed_batch_has_left_is_removed(words: Words, tmp_path: Path) -> None:
    words.write(0, "a")
    (tmp_path / "kept" / "batch=0" / "of another task").touch()

    words.write(0, "b")

    assert [file.name for file in (tmp_path / "kept" / "batch=0").iterdir()] == ["words"]


def test_batches_are_merged_in_a_tree(words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{DigestStore.__module__}.CHUNK", 2)
    for batch in range(7):
        words.write(batch, str(batch))
        words.commit(batch)
        assert words.read() == " ".join(map(str, range(batch + 1)))

    # What was merged last stays for a reader that began before it was committed.
    assert sorted(folder.name for folder in (tmp_path / "kept").iterdir()) == [
        "batch=4",
        "batch=5",
        "batch=6",
        "batches=0-1",
        "batches=0-3",
        "batches=2-3",
        "batches=4-5",
    ]
