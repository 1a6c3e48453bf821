"""The pages in an app of the user: below any prefix, whole and safe, and without changes unless controls are on."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from dispatcher import AsyncDispatcher
from dispatcher.ops import OpsConfig, ops_app
from dispatcher.web.plain_answers import Refusal

from ..ops.client import WAIT_S, Client, Hanging, Job, hanging

HOSTILE = "<img src=x onerror=alert(1)>\u202e\ud800"
MENU = ("/overview", "/dispatcher", "/failures", "/scheduled", "/entities", "/journal", "/process")
PATHS = ("/", *MENU, "/dispatcher/central", "/dispatcher/central/samples")


@pytest.fixture(scope="module")
def central() -> Iterator[Hanging]:
    """One event is being handled, several wait, and one has failed; all texts are hostile."""
    with hanging("central") as found:
        found.post(Job.FAIL, HOSTILE)
        found.hang(HOSTILE)
        for entity in ("job 1", "job 1", HOSTILE):
            found.post(Job.WAIT, entity)
        yield found


def addresses(text: str) -> set[str]:
    """What the page leads to or loads on its own site."""
    return {
        each for each in re.findall(r'(?:href|src|action)="([^"]*)"', text) if not each.startswith(("#", "?", "data:"))
    }


def test_the_menu_leads_to_every_page() -> None:
    head = Client(ops_app(), prefix="").get("/").text.partition("</nav>")[0]

    assert re.findall(r'<a href="(/[^"]*)"', head) == list(MENU)


@pytest.mark.parametrize("path", PATHS)
def test_every_page_is_whole_and_free_of_what_a_strict_policy_forbids(central: Hanging, path: str) -> None:
    answer = Client(ops_app(), prefix="").get(path)

    assert answer.status_code == 200
    assert answer.text.startswith("<!DOCTYPE html>")
    assert answer.text.rstrip().endswith("</html>")
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in answer.headers["content-security-policy"]
    assert " style=" not in answer.text
    assert "<style" not in answer.text
    assert re.findall(r"<script[^>]*>", answer.text) == re.findall(
        r'<script src="/static/live\.js\?v=\w{8}" defer>', answer.text
    )
    assert "<img" not in answer.text
    assert not set(answer.text) & set("\u202e\ud800")


@pytest.mark.parametrize(
    ("app", "prefix", "root_path"),
    [
        (lambda: Starlette(routes=[Mount("/ops", ops_app())]), "/ops", ""),
        (lambda: Starlette(routes=[Mount("/a b", routes=[Mount("/{team}", ops_app())])]), "/a%20b/x%20y", ""),
        (lambda: Starlette(routes=[Mount("/ops", ops_app())]), "/ops", "/behind/a/proxy"),
    ],
)
def test_all_links_stay_below_the_prefix(central: Hanging, app: Any, prefix: str, root_path: str) -> None:
    client = Client(_behind(app(), root_path), prefix=prefix)

    for path in PATHS:
        page = client.get(path)

        assert page.status_code == 200
        assert addresses(page.text)
        outside = [each for each in addresses(page.text) if not each.startswith(f"{root_path}{prefix}/")]
        assert outside == []
    for each in addresses(client.get("/").text):
        inside = each.removeprefix(f"{root_path}{prefix}")
        assert client.get(inside).status_code == 200, each


def _behind(app: Any, root_path: str) -> Any:
    """The app as a server shows it that a proxy reaches without the prefix."""

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": root_path, "path": root_path + scope["path"]}, receive, send)

    return served


def test_fastapi_can_mount_it(central: Hanging) -> None:
    fastapi = pytest.importorskip("fastapi", reason="fastapi is not installed")
    app = fastapi.FastAPI()
    app.mount("/ops", ops_app())

    page = Client(_behind(app, "/api"), prefix="").get("/ops/")

    assert page.status_code == 200
    assert all(each.startswith("/api/ops/") for each in addresses(page.text))


@pytest.mark.parametrize(
    ("path", "text"),
    [("/dispatcher/nobody", "no dispatcher &#39;nobody&#39; in this process"), ("/nowhere", "there is no such page")],
)
def test_what_is_not_there_is_a_page_for_people(path: str, text: str) -> None:
    answer = asyncio.run(Client(ops_app(), prefix="").send("GET", path, headers={"Accept": "text/html"}))

    assert answer.status_code == 404
    assert "<h1>Not found</h1>" in answer.text
    assert text in answer.text


@pytest.mark.parametrize(("control", "role"), [(False, None), (False, "admin"), (True, None), (True, "user")])
def test_without_controls_or_an_administrator_no_page_has_a_change(
    central: Hanging, control: bool, role: str | None
) -> None:
    client = Client(ops_app(OpsConfig(control=control)), role, prefix="")

    for path in PATHS:
        assert 'method="post"' not in client.get(path).text


def test_the_page_of_a_dispatcher_has_its_stack_its_queue_and_its_types(central: Hanging) -> None:
    text = Client(ops_app(), prefix="").get("/dispatcher/central").text

    assert "hang_here" in text
    assert re.search(r">job 1</a></td><td class=\"number\" data-label=\"queued\">2<", text), "the queue by entity"
    assert re.search(r">Job\.WAIT</td><td class=\"number\" data-label=\"queued\">3<", text), "the queue by type"
    assert "ValueError" in text


def test_sampled_stacks_are_folded_and_taken_for_the_page_alone(central: Hanging) -> None:
    text = Client(ops_app(), prefix="").get("/dispatcher/central/samples", samples=3).text

    assert "3 samples of its stack" in text
    assert text.count("<summary>") == 1
    assert "hang_here" in text


@pytest.mark.parametrize(
    ("failure", "said"),
    [(RuntimeError, ["can't start new thread"]), (Refusal, [429, "8 such requests are in flight"])],
    ids=["without a thread", "among too many"],
)
def test_a_page_that_cannot_be_made_now_is_not_gone(
    failure: type[Exception], said: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where too many clients asked at once, each was told that the daemon no longer had what its page showed."""
    monkeypatch.setattr("dispatcher.pages.site.TICK_S", 0.0)
    start, fails, kept = threading.Thread.start, [True], [AsyncDispatcher(name="brief")]
    told: list[dict[str, Any]] = []

    def start_later(thread: threading.Thread) -> None:
        if fails:
            fails.clear()
            raise failure(*said)
        start(thread)

    async def follow() -> None:
        stopping = asyncio.Event()
        app = ops_app(stopping=stopping)

        async def watched(scope: Any, receive: Any, send: Any) -> None:
            async def look(message: Any) -> None:
                await send(message)
                if b"data: " in message.get("body", b""):
                    told.append(json.loads(message["body"].partition(b"data: ")[2]))
                    kept.clear()
                    gc.collect()
                    if "gone" in told[-1]:
                        stopping.set()

            await app(scope, receive, look)

        client = Client(watched, prefix="")
        asked = client.send("GET", "/dispatcher/brief", headers={"accept": "text/event-stream"})
        await asyncio.wait_for(asked, WAIT_S)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    asyncio.run(follow())

    assert "part-notice" in told[0]["parts"]
    assert told[-1]["gone"] is True
