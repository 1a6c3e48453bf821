"""The pages in a real browser: at every width and in both schemes, with nothing on the console, and live.

Pictures go to the folder in ARTIFACTS_DIR, if that is set, to be looked at.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.pages.table import PAGES
from statemachines.resourcemanager import ApplicationSubmission, Resource
from statemachines.simulation.workload import NodeSpec

from .....dispatcher.pages.in_browser import (
    BARE_LINKS,
    FAINT,
    HIDDEN,
    IN_BROWSER,
    browser,
    overflow,
    show_page,
)
from .....pipeline.report.page.browser import Browser
from ....simulation.replays import TIMEOUT_S
from ..front import NODE, NODE_ID, Front, front, until
from ..routes import running
from .test_page_contents import MARKUP, MOST_BYTES, submit

MANY = 1_000

__all__ = ["browser"]

LISTS = ("/apps", "/nodes", "/overview", "/dispatcher")
OF_DAEMONS = tuple(page.path for page in PAGES)

pytestmark = IN_BROWSER


def show(browser: Browser, made: Front, path: str, width: int = 1280, scheme: str = "light") -> None:
    show_page(browser, f"{made.door.url}{path}", width, scheme)


def about(app_id: str) -> list[str]:
    """Pages about one application or node."""
    return [f"/app/{app_id}", f"/entity/{app_id}", f"/node/{NODE_ID}"]


def found_in(browser: Browser, made: Front, script: str, *paths: str, width: int = 1280) -> dict[str, object]:
    """What the script finds on each of these pages, if anything."""
    found = {}
    for path in paths:
        show(browser, made, f"/cluster{path}", width)
        found[path] = browser.value(script)
    return {path: each for path, each in found.items() if each}


def fill(made: Front, count: int) -> None:
    """Submit applications that wait for ever."""
    clients, size = made.manager.clients, Resource(1_000_000, 1000)
    ids = [clients.get_new_application(timeout=TIMEOUT_S) for _ in range(count)]
    stored = [
        clients.submit_application_later(
            ApplicationSubmission(application_id=id, am_resource=size, name=f"job {number}", user=f"user{number % 7}")
        )
        for number, id in enumerate(ids)
    ]
    for each in stored:
        each.result(TIMEOUT_S * 10)
    until(lambda: len(made.door.app.state.rm.model.apps) == count, "all are published")


@pytest.fixture(scope="module", params=[0, MANY])
def filled(request: pytest.FixtureRequest) -> Iterator[Front]:
    with front(NODE, max_completed_applications=MANY, web={"refresh_ms": 250}) as made:
        fill(made, request.param)
        yield made


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark"), (2560, "light")])
def test_every_page_fits_every_width_and_says_nothing_on_the_console(
    browser: Browser, filled: Front, width: int, scheme: str
) -> None:
    apps = list(filled.door.app.state.rm.model.apps)
    about_one = [*about(apps[0]), f"/app/{apps[0]}/kill"] if apps else [f"/node/{NODE_ID}"]
    for path in (f"/cluster{each}" for each in ("", *LISTS, "/scheduler", *OF_DAEMONS, "/about", *about_one)):
        show(browser, filled, path, width, scheme)

        assert overflow(browser) <= 0, path
        if folder := os.environ.get("ARTIFACTS_DIR"):
            picture = f"{len(apps)}-{width}-{scheme}{path.replace('/', '-').replace(':', '_')}.png"
            browser.screenshot(Path(folder, picture))
    assert browser.problems == []


@pytest.mark.parametrize("width", [390, 1280])
def test_no_column_is_hidden_and_no_text_lies_over_another(browser: Browser, width: int) -> None:
    """On a small screen, tables showed their first column, and the word master lay below the state."""
    with running() as (made, known):
        hidden = found_in(browser, made, HIDDEN, *LISTS, *about(known.app), width=width)
    browser.problems.clear()  # the server has ended

    assert hidden == {}


def test_a_link_in_a_text_is_underlined(browser: Browser) -> None:
    """axe: "Show all" beside "No application matches." differed by its color alone."""
    with running() as (made, known):
        paths = ("/apps?q=none", "/nodes?q=none", "/scheduler", "/about", *LISTS, f"/app/{known.app}/kill")
        bare = found_in(browser, made, BARE_LINKS, *paths, *about(known.app))
    browser.problems.clear()  # the server has ended

    assert bare == {}


@pytest.fixture(scope="module")
def parted() -> Iterator[Front]:
    """A cluster with GPUs in a partition of their own, racks with long names, and a queue in both partitions."""
    rack = "/datacenter-of-the-north/row-12/rack-07"
    nodes = (
        NodeSpec("worker-a01.north.example.com", Resource(262_144, 48_000), rack),
        NodeSpec("worker-g01.north.example.com", Resource(524_288, 96_000, 8), rack, partition="gpu-a100"),
    )
    labels = {"gpu-a100": {"capacity": 100}}
    queues = [{"name": "a", "capacity": 100, "accessible_node_labels": labels}, {"name": "b", "capacity": 0}]
    with front(*nodes, scheduler={"kind": "capacity", "queues": queues}, web={"refresh_ms": 250}) as made:
        yield made


MIDDLES = """[...document.querySelectorAll(SELECTOR)].filter((each) => each.checkVisibility()).map((each) => {
  const box = each.getBoundingClientRect();
  return box.top + box.height / 2;
})"""
HEIGHTS = "[...document.querySelectorAll(SELECTOR)].map((each) => each.getBoundingClientRect().height)"


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_what_belongs_together_stands_together(browser: Browser, parted: Front, width: int) -> None:
    """A queue's percentages were 10 px off the bar of their partition, and of the eight key figures one was wrapped."""

    def measured(script: str, selector: str) -> list[float]:
        return [float(each) for each in browser.value(script.replace("SELECTOR", repr(selector)))]

    show(browser, parted, "/cluster/scheduler", width)
    bars, percentages = measured(MIDDLES, ".queue svg.bars"), measured(MIDDLES, ".queue .of > div")
    named = browser.value("[...document.querySelectorAll('.queue .partition')].map((each) => each.innerText)")
    wide = overflow(browser), browser.value(HIDDEN)
    show(browser, parted, "/cluster", width)
    curves, names = measured(MIDDLES, ".figure svg"), measured(HEIGHTS, ".figure .name")
    browser.value("document.querySelectorAll('.figure .value').forEach((each) => (each.textContent = '1,234,567'))")
    values = measured(HEIGHTS, ".figure .value")
    below = float(browser.value("document.getElementById('part-figures').getBoundingClientRect().bottom"))
    show(browser, parted, "/cluster/nodes", width)
    racks = measured(HEIGHTS, "td.rack")
    lists = overflow(browser), browser.value(HIDDEN)

    assert len(bars) == len(percentages) == 5
    assert max(abs(one - other) for one, other in zip(bars, percentages, strict=True)) <= 6
    assert named == ["default", "gpu-a100"] * 2 + ["default"]
    assert (wide, lists) == ((0, []), (0, []))
    assert len(curves) == (0 if width == 390 else 8)
    assert len({round(each) for each in curves}) <= 1
    assert max(names) < 24
    assert max(values) < 30
    assert below < 400
    assert max(racks) < 30
    assert browser.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_the_contrast_of_wcag_aa(browser: Browser, filled: Front, scheme: str) -> None:
    ids = list(filled.door.app.state.rm.model.apps)
    apps = [*about(ids[0]), f"/app/{ids[0]}/kill", f"/app/{ids[0]}/move"] if ids else [f"/node/{NODE_ID}"]
    for path in ("/apps?q=none", "/scheduler", "/about", *LISTS, *apps):
        show(browser, filled, f"/cluster{path}", 2560, scheme)

        seen = browser.value(FAINT)

        assert seen["found"] == [], path
        assert seen["looked"] > 10, path


@pytest.mark.parametrize(
    "reason", ["", "its master has container container_1795868997343_0347_01_000001 on node worker-b08:45454"]
)
def test_long_names_are_cut_and_leave_the_reason_its_width(browser: Browser, reason: str) -> None:
    """At 1280 px the reason got what the names left, a container's id widened its column, and a row had five lines.

    `reason`: another one than that of the application; empty: its own.
    """
    with front(NODE) as made:
        app_id = submit(made, name="a name of many words " * 9, user="someone-with-a-long-name", queue="default")
        until(
            lambda: 'class="why" title=' in made.http.get("/cluster/apps").text, f"{app_id} is listed with the reason"
        )
        show(browser, made, "/cluster/apps")
        if reason:
            browser.value(f"document.querySelector('td.why').textContent = {reason!r}")
        width = browser.value("document.querySelector('td.why').getBoundingClientRect().width")
        spare = browser.value(
            "(() => { const box = document.querySelector('.scroll'); return box.clientWidth - box.scrollWidth; })()"
        )
        lines = browser.value("document.querySelector('td.cut').getBoundingClientRect().height")
    browser.problems.clear()  # the server has ended

    assert 250 <= width < 300
    assert spare >= 0
    assert lines < 40


@pytest.mark.parametrize("width", [390, 1280])
def test_a_timeline_is_redrawn_for_the_width_of_the_screen(browser: Browser, width: int) -> None:
    """On a small screen it was the same drawing, shrunk to letters of four pixels."""
    with front(NODE) as made:
        app_id = submit(made, name="it", user="ann")
        until(lambda: app_id in made.http.get("/cluster/apps").text, "it is listed")
        show(browser, made, f"/cluster/app/{app_id}", width)
        letters = browser.value(
            "Math.min(...[...document.querySelectorAll('.timeline .axis text')]"
            ".filter(each => each.checkVisibility()).map(each => each.getBoundingClientRect().height))"
        )
        course = browser.value("document.querySelector('.timeline .course').getBoundingClientRect().width")
        panel = browser.value("document.getElementById('part-timeline').clientWidth")
    browser.problems.clear()  # the server has ended

    assert letters >= 11
    assert course >= panel - 170
    assert course <= panel


@pytest.mark.parametrize("path", ["/cluster", "/cluster/apps?sort=name", "/cluster/nodes", "/cluster/scheduler"])
def test_a_page_is_small_however_many_applications_there_are(filled: Front, path: str) -> None:
    page = filled.http.get(path)

    assert len(gzip.compress(page.content)) <= MOST_BYTES
    assert page.text.count("<tr data-key=") <= 100


def test_the_list_follows_what_happens_and_shows_times_in_the_viewers_zone(browser: Browser) -> None:
    with front(NODE) as made:
        browser("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
        try:
            first = submit(made, name=MARKUP, user="ann")
            until(lambda: first in made.http.get("/cluster/apps").text, "it is listed")
            show(browser, made, "/cluster/apps")
            browser.value("document.getElementById('q').focus(); 1")
            second = submit(made, name="second", user="ann")

            rows = "[...document.querySelectorAll('#rows tr')].map(each => each.dataset.key).join()"
            until(lambda: browser.value(rows) == f"{second},{first}", "the new one is on top")
            title = browser.value("document.querySelector('#rows time').title")
            focus = browser.value("document.activeElement.id")
        finally:
            browser("Emulation.setTimezoneOverride", timezoneId="")

    assert "India Standard Time" in title
    assert focus == "q"
    assert browser.value("document.querySelectorAll('#rows img').length") == 0
    browser.problems.clear()  # the server has ended


def test_the_buttons_work_in_a_browser(browser: Browser) -> None:
    with front(NODE) as made:
        app_id = submit(made, name="it", user="dr.who")
        until(lambda: app_id in made.http.get("/cluster/apps").text, "it is listed")
        show(browser, made, f"/cluster/app/{app_id}/kill")
        browser.value("setTimeout(() => document.querySelector('form').requestSubmit(), 0); 1")

        until(lambda: browser.value("location.pathname") == f"/cluster/app/{app_id}", "it leads back")
        until(lambda: made.state(app_id) == "KILLED", "it is killed")
        text = "document.body ? document.body.innerText : ''"
        until(lambda: "killed by user dr.who" in str(browser.value(text)), "the page shows it")
    browser.problems.clear()  # the server has ended


def test_without_javascript_the_page_is_whole_and_says_utc(browser: Browser) -> None:
    with front(NODE) as made:
        app_id = submit(made, name="it", user="dr.who")
        until(lambda: app_id in made.http.get("/cluster/apps").text, "it is listed")
        browser("Emulation.setScriptExecutionDisabled", value=True)
        try:
            browser("Page.navigate", url=f"{made.door.url}/cluster/apps")
            until(lambda: app_id in str(browser.value("document.body ? document.body.innerText : ''")), "it is shown")
            text = browser.value("document.querySelector('#rows time').textContent")
            footer = browser.value("document.querySelector('footer').innerText")
        finally:
            browser("Emulation.setScriptExecutionDisabled", value=False)

    assert text.endswith(" UTC")
    assert "reload the page" in footer
    browser.problems.clear()  # the server has ended
