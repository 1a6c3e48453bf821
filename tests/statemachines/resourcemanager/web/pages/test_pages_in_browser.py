"""The pages in a real browser: at every width and in both schemes, with nothing on the console, and live.

Pictures go to the folder in ARTIFACTS_DIR, if that is set, to be looked at.
"""

from __future__ import annotations

import gzip
import html
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("uvicorn", reason="the extra web is not installed")
pytest.importorskip("jinja2", reason="the extra web is not installed")

from statemachines.resourcemanager import ApplicationSubmission, Resource

from .....pipeline.report.page.browser import Browser
from ....simulation.replays import TIMEOUT_S
from ..front import NODE, NODE_ID, Front, front, until
from ..routes import running
from .test_page_contents import MARKUP, MOST_BYTES, submit

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MANY = 1_000

pytestmark = [
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


def show(browser: Browser, made: Front, path: str, width: int = 1280, scheme: str = "light") -> None:
    browser("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
    browser("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser("Page.navigate", url=f"{made.door.url}{path}")
    until(lambda: browser.value("document.readyState") == "complete", f"{path} is loaded")
    live = "!document.documentElement.dataset.follow || document.getElementById('live').textContent === 'live'"
    until(lambda: browser.value("location.pathname + location.search") == path and browser.value(live), "it is live")


def overflow(browser: Browser) -> int:
    return int(browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


HIDDEN = """(() => {
  const seen = (selector) => [...document.querySelectorAll(selector)].filter((each) => each.checkVisibility());
  const tables = seen(".scroll > table").filter((each) => each.offsetWidth > each.parentElement.clientWidth);
  const texts = seen("td:not(.cut), .figure").filter((each) => each.scrollWidth > each.clientWidth + 1);
  return [...tables, ...texts].map((each) => each.innerText.slice(0, 80));
})()"""
"""Tables of which a part is to be seen only after a turn to the side, and texts that reach out of their place."""
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
    about_one = (
        [f"/cluster/app/{apps[0]}", f"/cluster/entity/{apps[0]}", f"/cluster/app/{apps[0]}/kill"] if apps else []
    )
    pages = ("", "/apps", "/nodes", f"/node/{NODE_ID}", "/scheduler", "/dispatcher", "/about")
    for path in (*(f"/cluster{each}" for each in pages), *about_one):
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
        pages = (f"/app/{known.app}", f"/node/{NODE_ID}", f"/entity/{known.app}", "/apps", "/nodes", "/dispatcher")
        hidden = {}
        for path in pages:
            show(browser, made, f"/cluster{path}", width)
            hidden[path] = browser.value(HIDDEN)
    browser.problems.clear()  # the server has ended

    assert {path: found for path, found in hidden.items() if found} == {}


def test_a_link_in_a_text_is_underlined(browser: Browser) -> None:
    """axe: "Show all" beside "No application matches." differed by its color alone."""
    with running() as (made, known):
        about_one = (f"/app/{known.app}", f"/app/{known.app}/kill", f"/node/{NODE_ID}", f"/entity/{known.app}")
        bare = {}
        for path in ("/apps?q=none", "/nodes?q=none", "/apps", "/scheduler", "/dispatcher", "/about", *about_one):
            show(browser, made, f"/cluster{path}")
            bare[path] = browser.value(BARE_LINKS)
    browser.problems.clear()  # the server has ended

    assert {path: found for path, found in bare.items() if found} == {}


@pytest.mark.parametrize("width", [390, 1280])
def test_the_widest_key_figure_takes_one_line(browser: Browser, filled: Front, width: int) -> None:
    """At 1280 px it reached over the edge of its card."""
    show(browser, filled, "/cluster", width)

    is_within, height = browser.value("""(() => {
      const value = document.querySelector(".figure .value:has(small:not(:empty))");
      value.innerHTML = "100 % <small>of 2.44 TB</small>";
      const figure = value.closest(".figure");
      return [figure.scrollWidth <= figure.clientWidth, value.getBoundingClientRect().height];
    })()""")

    assert is_within
    assert height < 40


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_the_contrast_of_wcag_aa(browser: Browser, filled: Front, scheme: str) -> None:
    ids = list(filled.door.app.state.rm.model.apps)
    apps = [f"/app/{ids[0]}", f"/entity/{ids[0]}", f"/app/{ids[0]}/kill", f"/app/{ids[0]}/move"] if ids else []
    for path in ("/apps", "/apps?q=none", "/nodes", f"/node/{NODE_ID}", "/scheduler", "/dispatcher", "/about", *apps):
        show(browser, filled, f"/cluster{path}", 2560, scheme)

        seen = browser.value(FAINT)

        assert seen["found"] == [], path
        assert seen["looked"] > 10, path


@pytest.mark.parametrize(
    "reason", ["", "its master has container container_1795868997343_0347_01_000001 on node worker-b08:45454"]
)
def test_long_names_are_cut_and_leave_the_reason_its_width(browser: Browser, reason: str) -> None:
    """At 1280 px the reason got what the names left, and was cut within a number; a container's id widened its column.

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

    assert 250 <= width < 270
    assert spare >= 0
    assert lines < 120


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


def test_all_rows_of_a_long_list_are_reached_by_its_links(filled: Front) -> None:
    seen: list[str] = []
    path: str | None = "/cluster/apps?sort=name&order=asc"
    while path is not None:
        text = filled.http.get(path).text
        seen += re.findall(r'<tr data-key="([^"]+)"', text)
        following = re.search(r'<a rel="next" href="([^"]+)"', text)
        path = html.unescape(following[1]) if following else None

    assert sorted(seen) == sorted(filled.door.app.state.rm.model.apps)
    assert len(seen) == len(set(seen))


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
