"""Five incidents: the overview shows at once which dispatcher, which type, since when, and what waits.

Pictures go to the folder in ARTIFACTS_DIR, if that is set, to be looked at.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="the extra web is not installed")

from ...pipeline.report.page.browser import Browser
from ..pages.in_browser import IN_BROWSER, browser, show_page, until
from .conftest import Trouble

__all__ = ["browser"]

pytestmark = IN_BROWSER

ROWS = """[...document.querySelectorAll('#part-problems tbody tr')]
  .filter((row) => row.checkVisibility() && row.getBoundingClientRect().bottom <= innerHeight)
  .map((row) => [...row.cells].map((cell) => cell.innerText))"""
"""The cells of the problems that are to be seen on the first screen."""


def test_an_incident_is_found_on_the_overview_without_a_click(browser: Browser, trouble: Trouble) -> None:
    shown = trouble.shown
    name = shown.problem.replace("_", " ")

    show_page(browser, f"{trouble.door.host.url}/")
    until(browser, f"{ROWS}.some((row) => row[0] === {name!r})", f"{name} is shown")

    [row] = [cells for cells in browser.value(ROWS) if cells[0] == name]
    assert row[1:3] == [shown.dispatcher, shown.event]
    assert re.search(r"since .*\d", row[3])
    assert re.search(shown.waits, row[5])
    if folder := os.environ.get("ARTIFACTS_DIR"):
        browser.screenshot(Path(folder, f"incident-{shown.problem}.png"))
    assert browser.problems == []
