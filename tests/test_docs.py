"""The documents: the examples on each page run, and its links lead somewhere. Those on Spark: see test_examples.py."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

from .documents import PAGES, PUBLIC, ROOT, examples_of, module_for, name_of, pages_with, run_examples

DOCUMENTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
MOST_README_LINES = 120


@pytest.mark.parametrize("page", pages_with("python"), ids=name_of)
def test_the_examples_of_a_page_run_one_after_the_other(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_for(page)
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where dataclasses look for the module of a class

    run_examples(page, "python", module)


@pytest.mark.parametrize("page", pages_with("python"), ids=name_of)
def test_no_example_posts_in_an_assert(page: Path) -> None:
    """`python -O` leaves it out, and then nothing is posted."""
    asserts = [
        node
        for example in (*examples_of(page, "python"), *examples_of(page, "python notest"))
        for node in ast.walk(ast.parse(example))
        if isinstance(node, ast.Assert)
    ]
    posts = [ast.unparse(each) for each in asserts if re.search(r"\.(post|post_\w+)\((?!['\"]/)", ast.unparse(each))]
    assert posts == []


PROGRAMS = [*(ROOT / "examples").glob("*.py"), *(ROOT / "docs" / "tutorials").glob("*/*.py")]
INSIDES = ("docs/explanation/", "docs/architecture", "CHANGELOG")
"""Pages that name modules: about how it works, and about what has changed."""
OURS = r"(?:dispatcher|statemachines|pipeline)(?:\.[a-z_]+)*"


@pytest.mark.parametrize("document", [*DOCUMENTS, *PROGRAMS], ids=name_of)
def test_users_are_shown_public_names_only(document: Path) -> None:
    """All others can change in any release."""
    text = document.read_text(encoding="utf-8")
    is_program = document.suffix == ".py"
    codes = [text] if is_program else re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.M | re.S)
    imports = [each for code in codes for each in ast.walk(ast.parse(code)) if isinstance(each, ast.ImportFrom)]
    shown = {(str(each.module), alias.name) for each in imports for alias in each.names}
    if not is_program:
        added = re.findall(rf"^\+from ({OURS}) import (\w.*)$", text, re.M)  # what a step of a tutorial changes
        shown |= {(module, name) for module, names in added for name in names.split(", ")}
    if not is_program and not name_of(document).startswith(INSIDES):
        shown |= set(re.findall(rf"`({OURS}\.\w+)\.(\w+)(?:\(.*?\))?`", text))

    private = {f"{module}.{name}" for module, name in shown if not is_public(module, name)}
    assert private == set()


def is_public(module: str, name: str) -> bool:
    """Whether the name is in the reference, or not one of a module of ours: `dispatcher.event_handler.handle`."""
    if not re.fullmatch(OURS, module) or name in PUBLIC.get(module, ()) or f"{module}.{name}" in PUBLIC:
        return True
    page = ROOT / "docs" / "api" / f"{module}.md"
    if page.exists() and name in page.read_text(encoding="utf-8").split():
        return True
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return True
    return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)", prose)

    missing = [target for target in targets if not (document.parent / target).exists()]
    assert missing == [], f"{document.name} links to files that do not exist: {missing}"


def test_every_page_is_two_clicks_from_the_front_page() -> None:
    front = ROOT / "docs" / "index.md"
    first = pages_linked_from(front)

    reached = first.union(*map(pages_linked_from, first), {front, PAGES[0]})
    unlinked = [name_of(page) for page in PAGES if page not in reached]
    assert unlinked == [], f"link these pages from docs/index.md or from the index of their folder: {unlinked}"


def pages_linked_from(page: Path) -> set[Path]:
    """By links, and by the toctree of an index, which may stand for all pages of its folder."""
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", text)
    entries = [line for tree in re.findall(r"^```{toctree}\n(.*?)^```", text, re.M | re.S) for line in tree.split("\n")]
    found = {(page.parent / link).resolve() for link in links}
    return found.union(
        *(page.parent.glob(f"{entry}.md") for entry in entries if re.fullmatch(r"[\w*-][\w/.*-]*", entry))
    )


def test_the_readme_is_short() -> None:
    lines = len(PAGES[0].read_text(encoding="utf-8").splitlines())

    assert lines <= MOST_README_LINES, f"README.md has {lines} lines; move what is beyond {MOST_README_LINES} to docs/"
