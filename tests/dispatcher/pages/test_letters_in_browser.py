"""The pages of dead letters in a real browser: letters that come while some are chosen, and what became of these."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("uvicorn", reason="the extra web is not installed")

from dispatcher.ops import OpsConfig, OpsDoor
from dispatcher.web import WebConfig

from ...pipeline.report.page.browser import Browser
from ..ops.shop import Shop
from .in_browser import IN_BROWSER, assert_fits, browser, show_page, until

__all__ = ["browser"]

pytestmark = [*IN_BROWSER, pytest.mark.usefixtures("alone")]

LETTERS = "/failures/letters?dispatcher=shop"
PATHS = (
    LETTERS,
    "/failures/letter?dispatcher=shop&number=1",
    "/changes/redeliver?dispatcher=shop&letter=1&letter=2",
    "/changes/stop?dispatcher=shop",
    "/changes",
)


@pytest.fixture
def url(shop: Shop) -> Iterator[str]:
    web = WebConfig(port=0, unix_socket=False, anonymous_role="admin")
    with OpsDoor(OpsConfig(control=True, show_payloads=True), web, name="shop") as door:
        yield str(door.host.url)


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_the_pages_of_letters_fit_every_width(browser: Browser, shop: Shop, url: str, width: int, scheme: str) -> None:
    shop.place(*(f"a-rather-long-name-of-an-order-{number}" for number in range(30)))

    for path in PATHS:
        show_page(browser, url + path, width, scheme)
        assert_fits(browser, f"letters-{width}-{scheme}{path.partition('?')[0].replace('/', '-')}")
    assert browser.problems == []


def test_a_choice_outlives_letters_that_come_and_what_became_of_it_appears_by_itself(
    browser: Browser, shop: Shop, url: str
) -> None:
    shop.place("o1", "o2")
    show_page(browser, url + LETTERS)
    browser.value("document.querySelector('input[value=\"1\"]').click()")
    shop.place("o3")
    until(browser, "document.querySelectorAll('#rows tr').length === 3", "the letter that came is shown")

    assert browser.value("[...document.querySelectorAll('input:checked')].map((each) => each.value)") == ["1"]
    shop.is_mended = True
    shop.gate.clear()
    browser.value("[...document.querySelectorAll('button')].find((b) => b.innerText === 'Redeliver chosen').click()")
    until(browser, "document.title.startsWith('Redeliver 1 dead letter?')", "the question is shown")
    browser.value("document.querySelector('form[method=post] button').click()")
    until(browser, "location.pathname.startsWith('/changes/')", "the change is shown")
    until(browser, "document.getElementById('part-made')?.innerText.includes('not handled yet')", "it is posted")
    shop.gate.set()
    until(browser, "document.querySelector('#part-made .chip').innerText === 'handled'", "it is handled")
    assert shop.handled == ["o1"]
