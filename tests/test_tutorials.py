"""The tutorials and the how-to pages do what they say, in a fresh folder. Those for Spark: see its tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .documents import ROOT
from .tutorials import (
    ON_SPARK,
    TUTORIALS,
    Wrong,
    blocks_of,
    changed,
    commands_in,
    follow,
    is_followed,
    is_shuffle_of,
    needs,
)

SHORT_PAGES = [page for folder in ("coming-from", "how-to") for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
STEPS = sorted((ROOT / "docs" / "tutorials" / "daemon").glob("shop_*.py"))
FOLLOWED = [page for page in [*TUTORIALS, *SHORT_PAGES] if is_followed(page) and page.stem not in ON_SPARK]


def name_of(page: Path) -> str:
    return f"{page.parent.name}/{page.stem}"


@pytest.mark.long
@pytest.mark.parametrize("page", FOLLOWED, ids=name_of)
def test_a_tutorial_does_what_it_says(page: Path, tmp_path: Path) -> None:
    for needed in needs(page):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed")

    follow(page, tmp_path)


def test_the_programs_of_the_daemon_are_those_that_its_steps_make() -> None:
    [page] = [page for page in TUTORIALS if page.stem == "daemon"]
    programs, program = [], ""
    for block in blocks_of(page):
        if block.language == "diff":
            program = changed(program, block.text)
            programs.append(program)
        elif block.name == "shop.py":
            program = block.text
            programs.append(program)

    assert programs == [step.read_text(encoding="utf-8") for step in STEPS]


def test_a_page_that_says_something_else_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```text a.txt\none\ntwo\n```\n```diff a.txt\n one\n-two\n+2\n```\n```console\n$ cat a.txt\none\ntwo\n```\n"
    )

    with pytest.raises(Wrong, match="2"):
        follow(page, tmp_path)


def test_a_line_that_the_page_leaves_out_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ seq 3\n1\n3\n```\n")

    with pytest.raises(Wrong, match="2"):
        follow(page, tmp_path)


def test_lines_of_a_job_may_come_between_others() -> None:
    assert is_shuffle_of(("job 1", "a", "...", "job 2"), ("job 1", "job 2"), ("a", "b"))
    assert not is_shuffle_of(("job 1", "a"), ("job 1", "job 2"), ("a",))


def test_a_job_in_the_background_goes_on_from_command_to_command(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ cat > b.txt; (echo a; sleep 1000) &\na\n$ kill $!; ls\nb.t...\npage.md\n```\n")

    follow(page, tmp_path)


def test_commands_have_the_lines_that_follow() -> None:
    assert commands_in("$ a\n$ b\nc\n...\n") == [("a", []), ("b", ["c", "..."])]
