"""The documents: the examples on each page run, and its links lead somewhere. Those on Spark: see test_examples.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from .documents import PAGES, ROOT, module_for, pages_with, run_examples

DOCUMENTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
MOST_README_LINES = 300


@pytest.mark.parametrize("page", pages_with("python"), ids=lambda page: page.stem)
def test_the_examples_of_a_page_run_one_after_the_other(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_for(page)
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where dataclasses look for the module of a class

    run_examples(page, "python", module)


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
