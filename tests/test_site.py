"""The site: `scripts/docs` builds it from docs/ and the docstrings, without a warning and without a broken link."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .commands import ROOT

pytestmark = pytest.mark.slow

TIMEOUT_S = 500.0

pytest.importorskip("sphinx", reason="the dependency group docs is not installed")

if not (ROOT / ".venv" / "bin" / "python").exists():
    pytest.skip("scripts/docs would set up a virtual environment first", allow_module_level=True)


def test_the_site_is_built_without_a_warning_and_has_every_page() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "docs", "-E"],  # every page anew: a page that was kept gives no warning
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    front = Path(done.stdout.splitlines()[-1])
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (front.parent / page).is_file()} == set()
