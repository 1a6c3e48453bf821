"""The site: `scripts/docs` builds it from docs/ and the docstrings, without a warning and without a broken link."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .kit.commands import ROOT

pytestmark = pytest.mark.slow

TIMEOUT_S = 500.0

pytest.importorskip("sphinx", reason="the dependency group docs is not installed")

if not (ROOT / ".venv" / "bin" / "python").exists():
    pytest.skip("scripts/docs would set up a virtual environment first", allow_module_level=True)


@pytest.fixture(scope="module")
def site() -> Path:
    """The folder of the built site."""
    done = subprocess.run(
        [ROOT / "scripts" / "docs", "-E"],  # every page again: a page that was kept gives no warning
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[-1]).parent


def test_the_site_is_built_without_a_warning_and_has_every_page(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).is_file()} == set()
    reference = (site / "api" / "dispatcher.html").read_text("utf-8")
    life_cycle = {f'id="dispatcher.AsyncDispatcher.{name}"' for name in ("start", "stop", "state")}
    assert {name for name in life_cycle if name not in reference} == set()


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_search_for_the_title_of_a_page_lists_that_page_first(site: Path) -> None:
    index = (site / "searchindex.js").read_text("utf-8")
    found = json.loads(index[index.index("{") : index.rindex("}") + 1])
    titles = dict(zip(found["docnames"], found["titles"], strict=True))

    done = subprocess.run(
        ["node", ROOT / "tests" / "site_search.js", site],
        input="\n".join(titles.values()),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert dict(zip(titles, done.stdout.splitlines(), strict=True)) == {page: page for page in titles}


def test_a_copy_button_copies_commands_without_their_prompts_and_outputs(site: Path) -> None:
    script = (site / "_static" / "copybutton.js").read_text("utf-8")

    assert "formatCopyText(text, '$ ', false, true," in script
