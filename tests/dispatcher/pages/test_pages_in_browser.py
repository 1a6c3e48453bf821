"""The pages of a daemon in a real browser: at every width and in both schemes, and when the daemon goes and comes back.

Pictures go to the folder in ARTIFACTS_DIR, if that is set, to be looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn", reason="the extra web is not installed")

from dispatcher import AsyncDispatcher
from dispatcher.ops import OpsDoor
from dispatcher.web import WebConfig

from ...pipeline.report.page.browser import Browser
from ..ops.client import Hanging, Job, hanging
from .in_browser import IN_BROWSER, assert_fits, browser, show_page, until
from .test_mounted_pages import PATHS

__all__ = ["browser"]

pytestmark = IN_BROWSER

TALLEST = "Math.max(0, ...[...document.querySelectorAll('.lines tbody tr')].map((each) => each.offsetHeight))"


@contextmanager
def door(port: int = 0) -> Iterator[str]:
    """The address of a daemon's pages."""
    with OpsDoor(web=WebConfig(port=port, unix_socket=False), name="shop") as opened:
        yield str(opened.host.url)


@pytest.fixture(scope="module")
def central() -> Iterator[Hanging]:
    """One event hangs, many wait, some have failed. Another dispatcher has a long name without a place to break it."""
    with hanging("central", queue_capacity=1000) as found, AsyncDispatcher(name="x" * 120):
        for number in range(20):
            found.post(Job.FAIL, f"job {number}")
        found.hang("job 7")
        for number in range(300):
            found.post(Job.WAIT, f"a-rather-long-name-of-an-entity-{number % 7}")
        yield found


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark"), (2560, "light")])
def test_every_page_fits_every_width_and_says_nothing_on_the_console(
    browser: Browser, central: Hanging, width: int, scheme: str
) -> None:
    with door() as url:
        for path in PATHS:
            show_page(browser, url + path, width, scheme)
            assert_fits(browser, f"daemon-{width}-{scheme}{path.replace('/', '-')}")
            assert width < 1280 or browser.value(TALLEST) < 26, f"{path}: a type has one line"
        assert browser.problems == []
    browser.problems.clear()  # the server has ended


def test_a_page_whose_daemon_is_gone_is_gray_and_says_as_of_when_until_it_is_back(
    browser: Browser, central: Hanging
) -> None:
    is_stale = "document.documentElement.classList.contains('stale')"
    with door() as url:
        show_page(browser, url)
        port = urlsplit(url).port
    until(browser, is_stale, "it says that the daemon is gone")
    notice = str(browser.value("document.getElementById('part-notice').innerText"))
    spare = browser.value("document.querySelector('.alert').offsetWidth - document.documentElement.clientWidth")
    style = browser.value("getComputedStyle(document.querySelector('main')).filter")
    assert port is not None
    with door(port):
        until(browser, f"!{is_stale}", "it goes on by itself")
        until(browser, "document.getElementById('live').textContent === 'live'", "it is live")
    browser.problems.clear()  # the server has ended

    assert re.match(r"The daemon does not answer\. This page shows the state as of .+, \d+ s ago\.", notice)
    assert (spare, style) == (0, "grayscale(1)")
