from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.util.folders import drafts, timed


def write(folder: Path, text: str) -> None:
    (folder / "tables").mkdir()
    (folder / "tables" / text).touch()
    (folder / "page").write_text(text)


def content(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_runs_that_begin_in_the_same_second_have_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.gmtime", lambda: (2026, 11, 28, 8, 31, 44, 5, 332, 0))
    found = []

    for _ in range(3):
        found.append(timed(tmp_path, "sample-"))
        found[-1].mkdir()

    first = "sample-20261128T083144Z"
    assert [each.name for each in found] == [first, f"{first}-2", f"{first}-3"]


def test_drafts_take_the_place_of_earlier_files_and_folders_and_leave_others(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"

    for text in ("old", "new"):
        with drafts(folder, "tables", "page", "absent", what="report") as place:
            write(place, text)
        (folder / "other").touch()

    assert content(folder) == ["other", "page", "tables/new"]
    assert (folder / "page").read_text() == "new"
    assert sorted(path.name for path in folder.iterdir()) == ["other", "page", "tables"]


@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt])
def test_what_is_broken_off_changes_nothing(tmp_path: Path, raised: type[BaseException]) -> None:
    write(tmp_path, "old")

    def broken_off() -> None:
        with drafts(tmp_path, "tables", "page", what="report") as place:
            write(place, "new")
            raise raised

    with pytest.raises(raised):
        broken_off()

    assert content(tmp_path) == ["page", "tables/old"]
    assert (tmp_path / "page").read_text() == "old"


def test_drafts_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".drafts-page").mkdir()
    write(tmp_path / ".drafts-page", "killed")

    with drafts(tmp_path, "page", "tables", what="report") as place:
        assert content(place) == []

    assert content(tmp_path) == []
