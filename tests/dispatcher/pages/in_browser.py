"""Pages in a real browser: a Chromium, a page once it is live, and scripts that measure what is drawn."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ...pipeline.report.page.browser import Browser

WAIT_S = 60.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
IN_BROWSER = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, tmp_path_factory.mktemp("chromium") / "profile") as started:
        network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        started("Network.emulateNetworkConditions", offline=False, **network)
        yield started


def show_page(browser: Browser, url: str, width: int = 1280, scheme: str = "light") -> None:
    """Load a page, and wait until it is live."""
    browser("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
    browser("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser("Page.navigate", url=url)
    until(browser, "document.readyState === 'complete'", f"{url} is loaded")
    parts = urlsplit(url)
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    until(browser, f"location.pathname + location.search === {path!r}", f"{url} is shown")
    is_live = "!document.documentElement.dataset.follow || document.getElementById('live').textContent === 'live'"
    until(browser, is_live, f"{url} is live")


def until(browser: Browser, script: str, what: str) -> None:
    """Wait until the script's value is true."""
    end_s = time.monotonic() + WAIT_S
    while not browser.value(script):
        assert time.monotonic() < end_s, f"not within {WAIT_S:g} s: {what}"


def overflow(browser: Browser) -> int:
    return int(browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def assert_fits(browser: Browser, picture: str) -> None:
    """Nothing of the page is cut off, bare or faint. Its picture goes into the folder ARTIFACTS_DIR, if set."""
    if folder := os.environ.get("ARTIFACTS_DIR"):
        browser.screenshot(Path(folder, f"{picture}.png"))
    assert overflow(browser) <= 0, picture
    assert (picture, browser.value(HIDDEN)) == (picture, [])
    assert (picture, browser.value(BARE_LINKS)) == (picture, [])
    assert (picture, browser.value(FAINT)["found"]) == (picture, [])


HIDDEN = """(() => {
  const seen = (selector) => [...document.querySelectorAll(selector)].filter((each) => each.checkVisibility());
  const tables = seen(".scroll > table").filter((each) => each.offsetWidth > each.parentElement.clientWidth);
  const texts = seen("td:not(.cut, .why), .figure").filter((each) => each.scrollWidth > each.clientWidth + 1);
  return [...tables, ...texts].map((each) => each.innerText.slice(0, 80));
})()"""
"""Tables of which a part is to be seen only after a turn to the side, and texts that reach out of their place, but for
those that are cut on purpose: their title has the whole."""
FAINT = """(() => {
  const parts = (text) => [...text.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const over = (top, below) => [0, 1, 2].map((at) => top[at] * top[3] + below[at] * (1 - top[3]));
  const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = (colour) => 0.2126 * linear(colour[0]) + 0.7152 * linear(colour[1]) + 0.0722 * linear(colour[2]);
  const found = [];
  function look(element, text, colour) {
    const layers = [];
    const place = element.getBoundingClientRect(), x = place.x + place.width / 2, y = place.y + place.height / 2;
    for (const each of element instanceof SVGElement ? element.parentElement.querySelectorAll("rect") : []) {
      const box = each.getBoundingClientRect();
      const isBehind = box.left <= x && x <= box.right && box.top <= y && y <= box.bottom;
      if (isBehind) layers.push(parts(getComputedStyle(each).fill));
    }
    for (let each = element; each; each = each.parentElement) {
      layers.push(parts(getComputedStyle(each).backgroundColor));
    }
    const ground = layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
    const [dark, bright] = [light(ground), light(over(parts(colour), ground))].sort((one, other) => one - other);
    const ratio = (bright + 0.05) / (dark + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${colour} on ${ground.map(Math.round)}: ${text.slice(0, 40)}`);
    looked += 1;
  }
  let looked = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    look(element, text, element instanceof SVGElement ? style.fill : style.color);
  }
  for (const each of document.querySelectorAll("input[placeholder]")) {
    look(each, each.placeholder, getComputedStyle(each, "::placeholder").color);
  }
  return { found, looked };
})()"""
"""Texts of less than WCAG's 4.5 to 1 against what is behind them, as the browser draws them."""


BARE_LINKS = """[...document.querySelectorAll("main a:not(.button)")].filter((link) => {
  const isInText = [...link.parentElement.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
  return isInText && !getComputedStyle(link).textDecorationLine.includes("underline");
}).map((link) => link.parentElement.innerText.slice(0, 80))"""
"""Texts with a link that only its color tells from the words beside it."""
