"""The documents: the examples on each page run, and its links lead somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
MOST_README_LINES = 300


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks whose first line is ``` and this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run_in_order(page: Path, language: str, module: ModuleType) -> None:
    for block in blocks(page, language):
        exec(compile(block, str(page), "exec"), module.__dict__)


def module_name(page: Path) -> str:
    return f"page_{page.stem.replace('-', '_')}"


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


@pytest.mark.parametrize("page", pages_with("python"), ids=lambda page: page.stem)
def test_the_examples_of_a_page_run_one_after_the_other(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(module_name(page))
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where dataclasses look for the module of a class

    run_in_order(page, "python", module)


@pytest.mark.parametrize("page", pages_with("python spark"), ids=lambda page: page.stem)
def test_the_examples_of_a_page_run_on_spark(page: Path, spark: SparkSession) -> None:
    module = ModuleType(module_name(page))  # not in sys.modules, so that its functions go to the workers by value
    module.__dict__["spark"] = spark

    run_in_order(page, "python spark", module)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.stem)
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)", prose)

    missing = [target for target in targets if not (document.parent / target).exists()]
    assert missing == [], f"{document.name} links to files that do not exist: {missing}"


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#]+)", PAGES[0].read_text(encoding="utf-8")))

    unlinked = {f"docs/{page.name}" for page in PAGES[1:]} - linked
    assert unlinked == set(), f"add these pages to the reading order in README.md: {sorted(unlinked)}"


def test_the_readme_is_short() -> None:
    lines = len(PAGES[0].read_text(encoding="utf-8").splitlines())

    assert lines <= MOST_README_LINES, f"README.md has {lines} lines; move what is beyond {MOST_README_LINES} to docs/"
