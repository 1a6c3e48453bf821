"""The pages in chromium: how soon they are there, how large they are, and ten minutes of five tabs that follow them."""

from __future__ import annotations

import gzip
import json
import time
import urllib.request
from contextlib import ExitStack
from statistics import median
from typing import Any

from measure import Figures, Settings, Spread, print_table
from ops.processes import wait_until
from ops.rates import rounds, seconds
from web.browser import Browser
from web.loads import KNOWN, cores, loaded, resource_manager

APPS = "/cluster/apps"
LOADS = 5
"""Of the page, in each round."""
TABS = (APPS, "/cluster", "/cluster/scheduler", "/cluster/nodes", "/cluster/dispatcher")
LIVE_S = 600.0
SETTLED = 0.1
"""The part of that time after which memory is measured for the first time."""
WARM_UP_S = 150.0
"""Before that, without tabs: within 100 s, applications that came under load have replaced all that were known."""
MIB = 2**20
PAINTED = "performance.getEntriesByName('first-contentful-paint').length"
TIMES = """JSON.stringify({
  page: performance.getEntriesByType('navigation')[0].toJSON(),
  paint: performance.getEntriesByName('first-contentful-paint')[0].startTime,
  resources: performance.getEntriesByType('resource').map(each => each.toJSON())
})"""


def first_paint(settings: Settings) -> Figures:
    """`/cluster/apps` with 10,000 applications, as a browser sees it that has nothing in its cache."""
    bytes_ms: list[float] = []
    paints_ms: list[float] = []
    with ExitStack() as stack:
        browser = stack.enter_context(Browser())  # on all cores: its processes work side by side, and ours is idle
        manager = stack.enter_context(resource_manager(nodes=settings.count(100), known=settings.count(KNOWN)))
        base = f"http://127.0.0.1:{manager.started['port']}"
        tab = browser.open_window(f"{base}{APPS}")
        browser.ask("Network.enable", tab)
        browser.ask("Network.setCacheDisabled", tab, cacheDisabled=True)
        for _ in range(rounds(settings)):
            found = [_load(browser, tab, f"{base}{APPS}") for _ in range(LOADS)]
            bytes_ms.append(median([each["page"]["responseStart"] - each["page"]["requestStart"] for each in found]))
            paints_ms.append(median([each["paint"] for each in found]))
        sizes = _sizes(base, found[-1]["resources"])
    spreads = {"first byte": Spread.of(bytes_ms), "first contentful paint": Spread.of(paints_ms)}
    print_table(f"{APPS}, {settings.count(KNOWN):,} applications, ms, lower is better", spreads, digits=1)
    print(", ".join(f"{name} {size:,}" for name, size in sizes.items()))
    return {
        "web-page.byte": median(bytes_ms),
        "web-page.paint": median(paints_ms),
        **{f"web-page.{name}": size for name, size in sizes.items()},
    }


def _load(browser: Browser, tab: str, url: str) -> dict[str, Any]:
    browser.go(tab, "about:blank")
    browser.go(tab, url)
    wait_until(lambda: bool(browser.value_in(tab, PAINTED)))
    found: dict[str, Any] = json.loads(browser.value_in(tab, TIMES))
    return found


def _sizes(base: str, resources: list[dict[str, Any]]) -> dict[str, float]:
    """KB of the page, packed, and of its own scripts and style sheets, unpacked; requests to other places."""
    kib = {"html": len(gzip.compress(_read(f"{base}{APPS}"))) / 1024, "js": 0.0, "css": 0.0}
    for url in {each["name"] for each in resources}:
        kind = url.partition("?")[0].rpartition(".")[2]
        if url.startswith(base) and kind in kib:
            kib[kind] += len(_read(url)) / 1024
    outside = sum(1 for each in resources if not each["name"].startswith((base, "data:")))
    return {name: round(size, 1) for name, size in kib.items()} | {"outside": float(outside)}


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        content: bytes = answer.read()
        return content


def live(settings: Settings) -> Figures:
    """Five tabs follow the pages under load L: memory on both sides, and what the web thread takes of a core.

    Before that, the same load without tabs: what the process then grows by is not theirs.
    """
    turn_s = seconds(settings, LIVE_S)
    with ExitStack() as stack:
        manager = stack.enter_context(loaded(settings))
        time.sleep(seconds(settings, WARM_UP_S))
        states = [manager.ask("memory")]
        time.sleep(turn_s * (1 - SETTLED))
        states.append(manager.ask("memory"))
        browser = stack.enter_context(Browser(cores()[1]))
        base = f"http://127.0.0.1:{manager.started['port']}"
        tabs = [browser.open_window(f"{base}{path}") for path in TABS]
        _follow(browser, tabs, turn_s * SETTLED)
        heaps, drawn = [browser.heap_bytes(tab) for tab in tabs], browser.renderers_bytes()
        states.append(manager.ask("memory"))
        manager.ask("mark")
        _follow(browser, tabs, turn_s * (1 - SETTLED))
        share = manager.ask("measured")["web_share"]
        states.append(manager.ask("memory"))
        heaps = [browser.heap_bytes(tab) - heap for tab, heap in zip(tabs, heaps, strict=True)]
        drawn = browser.renderers_bytes() - drawn
    sizes = [each["bytes"] / MIB for each in states]
    alone, grown = sizes[1] - sizes[0], sizes[3] - sizes[2]
    ended = [(states[end]["ended"] - states[end - 1]["ended"]) / (turn_s * (1 - SETTLED)) for end in (1, 3)]
    print(f"\n{len(TABS)} tabs for {turn_s:,.0f} s: {', '.join(TABS)}")
    print(f"Growth of the JavaScript heaps in MiB: {', '.join(f'{heap / MIB:+.1f}' for heap in heaps)}")
    print(f"Growth of the processes: {drawn / MIB:+.1f} MiB of the browser's, {grown:+.1f} MiB of ours")
    print(
        f"Ours without tabs, as long before: {alone:+.1f} MiB; it had {', '.join(f'{size:.1f}' for size in sizes)} MiB"
    )
    print(f"Applications that ended: {ended[0]:.1f}/s without tabs, {ended[1]:.1f}/s with them")
    print(f"The web thread took {share:.1%} of a core.")
    return {
        "web-live.tab": max(heaps) / MIB,
        "web-live.rm": grown,
        "web-live.alone": alone,
        "web-live.share": share,
    }


def _follow(browser: Browser, tabs: list[str], length_s: float) -> None:
    """Let some time pass; the pages must still be there at its end."""
    time.sleep(length_s)
    for tab in tabs:
        if browser.value_in(tab, "document.visibilityState") != "visible":
            raise RuntimeError("a tab is hidden, so it does not follow")
