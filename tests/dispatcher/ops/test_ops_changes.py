"""What administrators change: dead letters posted again and discarded, posts cancelled, a dispatcher stopped."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from dispatcher import MultiDispatcher, ServiceState
from dispatcher.ops import OpsConfig, ops_app

from ...kit import until
from ...kit.scenarios import play
from ..cli.letters import Order, OrderEvent
from .client import ENTITIES_ONLY, WAIT_S, Client, Job, hanging
from .shop import Shop, ShopStage, running_shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with running_shop(tmp_path / "letters") as found:
        yield found


def administrator(**options: Any) -> Client:
    return Client(ops_app(OpsConfig(control=True), **options), "admin")


@pytest.fixture
def client() -> Client:
    return administrator()


SCENARIOS = {
    "what became of each redelivered letter is told, and one that is named twice is posted once": "place o1 again | "
    "other | mend | hold | redeliver 1 2 3 17 1 -> posted 1 2 ; refused 3 17 ; became 1=posted 2=posted 3=rejected "
    "17=rejected | go -> became 1=handled 2=failed_again 3=rejected 17=rejected ; handled o1 ; letters None again",
    "the reason of each outcome is told": "place o1 again | mend | hold | redeliver 1 17 2 -> why 1=not_handled_yet "
    "17=no_such_dead_letter 2=not_handled_yet | go -> why 17=no_such_dead_letter 2=ValueError:_no_stock",
    "letters are discarded for good": "place o1 o2 o3 | discard 1 3 17 -> discarded 1 3 ; refused 17 ; letters o2 ; "
    "became 1=discarded 3=discarded 17=rejected ; why 17=no_such_dead_letter",
    "letters of another folder are not redelivered": "place o1 | mend | redeliver 1 elsewhere -> status 409 ; letters "
    "o1 ; handled",
    "letters of another folder are not discarded": "place o1 | discard 1 elsewhere -> status 409 ; letters o1",
    "scheduled posts are cancelled by key": "schedule kept gone | cancel gone missing -> cancelled gone ; refused "
    "missing ; became gone=cancelled missing=rejected ; scheduled kept",
    "a dispatcher that was stopped meanwhile changes nothing": "place o1 | mend | stopped | redeliver 1 -> status 409 "
    "; error shop:_is_STOPPED | discard 1 -> status 409 | cancel a -> status 409 | stop -> status 409 ; letters o1",
    "changes are listed newest first": "place o1 o2 | discard 1 | discard 2 -> /changes#user,operation,dispatcher "
    "tester:discard:shop tester:discard:shop ; /changes#items.0.items.0.name,items.1.items.0.name 2:1 ; !/changes/x "
    "404 ; !/changes/999999999999 404",
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_an_administrator_changes(client: Client, shop: Shop, script: str) -> None:
    play(ShopStage(shop, client), script)


def items(client: Client, change: int) -> dict[str, tuple[str, str]]:
    found = client.json(f"/changes/{change}")
    return {each["name"]: (each["outcome"], each.get("detail", "")) for each in found["items"]}


@pytest.mark.parametrize("change", ["redeliver", "discard"])
def test_letters_of_a_folder_that_is_gone_are_an_error(client: Client, shop: Shop, change: str) -> None:
    stage = ShopStage(shop, client)
    play(stage, f"place o1 | mend | gone | {change} 1 -> handled")

    assert stage.look("status") in ([409], [503])


def test_two_administrators_who_redeliver_a_letter_at_once_post_it_once(shop: Shop) -> None:
    shop.place("o1")
    body, shop.is_mended = shop.changes()["redeliver"], True
    client = administrator()

    async def both() -> list[Any]:
        asked = [client.send("POST", "/dispatchers/shop/redeliver", json=body) for _ in range(2)]
        return [answer.json() for answer in await asyncio.gather(*asked)]

    answers = asyncio.run(both())

    assert sorted(each["posted"] for each in answers) == [[], [1]]
    assert [each["refused"] for each in answers if not each["posted"]] == [
        [{"letter": 1, "reason": "no such dead letter"}]
    ]
    assert shop.dispatcher.await_drained(WAIT_S)
    assert shop.handled == ["o1"]


def test_posted_letters_that_a_stop_discards_are_told_as_not_handled(client: Client, shop: Shop) -> None:
    shop.place("o1", "o2")
    journal = shop.journal
    shop.gate.clear()
    change = client.post("/dispatchers/shop/redeliver", letters=[1, 2], journal=journal).json()["change"]
    shop.dispatcher.set_drain_events_on_stop(False)
    stopping = threading.Thread(target=shop.dispatcher.stop)
    stopping.start()
    until(lambda: shop.dispatcher.state is ServiceState.STOPPED)
    shop.gate.set()
    stopping.join(WAIT_S)

    assert items(client, change)["2"][0] == "not handled"


def test_one_dispatcher_is_stopped_and_the_others_run_on(client: Client) -> None:
    with hanging("one") as one, hanging("other") as other:
        one.hang("o1")
        one.post(Job.START)

        answer = client.post("/dispatchers/one/stop")

        change = answer.json()["change"]
        assert (answer.status_code, answer.json()["stopping"]) == (202, "one")
        until(lambda: one.dispatcher.state is ServiceState.STOPPED)
        assert items(client, change)["one"] == ("stopping", "1 event queued")
        one.release.set()
        assert one.dispatcher.wait_for_service_to_stop(WAIT_S)
        assert items(client, change)["one"] == ("stopped", "0 events queued")
        assert one.dispatcher.stats().handled == 2
        assert other.dispatcher.in_state(ServiceState.STARTED)


def test_a_partition_is_stopped_with_its_whole_dispatcher(client: Client) -> None:
    whole = MultiDispatcher(name="shop", partitions=2)
    with whole:
        answer = client.post("/dispatchers/shop-1/stop").json()

        until(lambda: whole.state is ServiceState.STOPPED)
        assert whole.wait_for_service_to_stop(WAIT_S)
        assert answer["stopping"] == "shop"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("redeliver", {"letters": [1]}),
        ("discard", {"letters": "1", "journal": "x"}),
        ("discard", {"letters": list(range(501)), "journal": "x"}),
        ("discard", {"letters": [True], "journal": "x"}),
        ("redeliver", {"letters": [2**70], "journal": "x"}),
        ("redeliver", {"letters": [-1], "journal": "x"}),
        ("discard", {"letters": [1], "journal": 17}),
        ("cancel", {}),
        ("cancel", {"keys": "daily"}),
        ("cancel", {"keys": [""]}),
        ("cancel", {"keys": [17]}),
    ],
)
def test_a_body_that_asks_for_something_else_is_refused(
    client: Client, shop: Shop, path: str, body: dict[str, Any]
) -> None:
    assert client.post(f"/dispatchers/shop/{path}", **body).status_code == 400


@pytest.mark.parametrize(
    ("control", "role", "may_see", "reason"),
    [
        (True, "view", None, "role admin is required; tester has role view"),
        (False, "admin", None, "controls are switched off; set ops.control: true"),
        (True, "admin", ENTITIES_ONLY, "changes are for administrators who may see everything"),
    ],
)
def test_changes_need_controls_and_an_administrator_who_may_see_everything(
    shop: Shop, control: bool, role: str, may_see: Any, reason: str
) -> None:
    shop.place("o1")
    shop.dispatcher.post_after(3600, OrderEvent(Order.PLACED, "o1"), key="daily")
    client = Client(ops_app(OpsConfig(control=control), may_see=may_see), role)

    answers = [client.post(f"/dispatchers/shop/{change}", **body) for change, body in shop.changes().items()]

    assert [(each.status_code, each.json()) for each in answers] == [(403, {"error": reason})] * 4
    if control:  # what was changed before can be looked at
        assert [client.error(path) for path in ("/changes", "/changes/1")] == [(403, reason)] * 2
    assert (shop.letters(), shop.dispatcher.stats().scheduled) == (["o1"], 1)
    assert shop.dispatcher.in_state(ServiceState.STARTED)


def test_a_change_keeps_no_dispatcher_alive(client: Client, tmp_path: Path) -> None:
    with running_shop(tmp_path) as failing:
        failing.place("o1")
    del failing
    shop = Shop(tmp_path)
    shop.is_mended = True
    with shop.dispatcher:
        redelivered = client.post("/dispatchers/shop/redeliver", **shop.changes()["redeliver"]).json()["change"]
        assert shop.dispatcher.await_drained(WAIT_S)
        stopped = client.post("/dispatchers/shop/stop").json()["change"]
        assert shop.dispatcher.wait_for_service_to_stop(WAIT_S)
    known = ref(shop.dispatcher)
    del shop

    until(lambda: gc.collect() >= 0 and known() is None)

    assert items(client, redelivered)["1"] == ("handled", "")
    assert items(client, stopped)["shop"] == ("stopped", "")


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}])
def test_a_mounted_app_refuses_changes_from_another_web_site(
    client: Client, shop: Shop, headers: dict[str, str]
) -> None:
    answer = client.request("POST", "/dispatchers/shop/stop", content="{}", headers=headers)

    assert (answer.status_code, shop.dispatcher.state) == (403, ServiceState.STARTED)
    assert "another web site" in answer.json()["error"]


def test_each_change_leaves_an_audit_line(client: Client, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.place("o1", "o2")
    journal = shop.journal
    with caplog.at_level(logging.INFO, "dispatcher.audit"):
        client.post("/dispatchers/shop/redeliver", letters=[1], journal=journal)
        client.post("/dispatchers/shop/discard", letters=[2, 17], journal=journal)
        client.post("/dispatchers/shop/cancel", keys=["daily\n"])
        client.post("/dispatchers/shop/discard", letters=[2], journal="other")
        client.post("/dispatchers/shop/stop")

    lines = [record.getMessage().split("\t") for record in caplog.records if record.name == "dispatcher.audit"]
    assert [(line[0], *line[2:5]) for line in lines] == [
        ("USER=tester", "OPERATION=redeliver 1 dead letter: 1", "TARGET=shop", "RESULT=SUCCESS"),
        ("USER=tester", "OPERATION=discard 2 dead letters: 2, 17", "TARGET=shop", "RESULT=SUCCESS"),
        ("USER=tester", "OPERATION=cancel 'daily\\n'", "TARGET=shop", "RESULT=SUCCESS"),
        ("USER=tester", "OPERATION=discard 1 dead letter: 2", "TARGET=shop", "RESULT=FAILURE"),
        ("USER=tester", "OPERATION=stop the dispatcher", "TARGET=shop", "RESULT=SUCCESS"),
    ]
    assert lines[3][5].startswith("DESCRIPTION=409: shop: its dead letters are in another folder")
