"""What administrators change: dead letters posted again and discarded, posts cancelled, a dispatcher stopped."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from dispatcher import MultiDispatcher, ServiceState
from dispatcher.ops import OpsConfig, ops_app

from ...kit import until
from ..cli.letters import Order, OrderEvent, Other, OtherEvent
from .client import ENTITIES_ONLY, WAIT_S, Client, Job, JobEvent, hanging
from .shop import Shop, running_shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with running_shop(tmp_path / "letters") as found:
        yield found


def administrator(**options: Any) -> Client:
    return Client(ops_app(OpsConfig(control=True), **options), "admin")


@pytest.fixture
def client() -> Client:
    return administrator()


def items(client: Client, change: int) -> dict[str, tuple[str, str]]:
    found = client.json(f"/changes/{change}")
    return {each["name"]: (each["outcome"], each.get("detail", "")) for each in found["items"]}


def test_what_became_of_each_redelivered_letter_is_told(client: Client, shop: Shop) -> None:
    shop.place("o1", "again")
    assert shop.dispatcher.post(OtherEvent(Other.PLACED))
    assert shop.dispatcher.await_drained(WAIT_S)
    journal, shop.is_mended = shop.journal, True
    shop.gate.clear()

    answer = client.post("/dispatchers/shop/redeliver", letters=[1, 2, 3, 17, 1], journal=journal).json()

    assert answer["posted"] == [1, 2]
    assert [each["letter"] for each in answer["refused"]] == [3, 17]
    assert items(client, answer["change"])["1"] == ("posted", "not handled yet")
    shop.gate.set()
    assert shop.dispatcher.await_drained(WAIT_S)
    became = items(client, answer["change"])
    assert became["1"] == ("handled", "")
    assert became["2"] == ("failed again", "ValueError: no stock")
    assert (became["3"][0], became["17"]) == ("rejected", ("rejected", "no such dead letter"))
    assert shop.handled == ["o1"], "once, although it was named twice"
    assert sorted(map(str, shop.letters())) == ["None", "again"]


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


def test_letters_are_discarded_for_good(client: Client, shop: Shop) -> None:
    shop.place("o1", "o2", "o3")

    answer = client.post("/dispatchers/shop/discard", letters=[1, 3, 17], journal=shop.journal).json()

    assert (answer["discarded"], answer["refused"]) == ([1, 3], [{"letter": 17, "reason": "no such dead letter"}])
    assert shop.letters() == ["o2"]
    assert items(client, answer["change"]) == {
        "1": ("discarded", ""),
        "3": ("discarded", ""),
        "17": ("rejected", "no such dead letter"),
    }


@pytest.mark.parametrize("change", ["redeliver", "discard"])
def test_letters_of_another_folder_or_of_one_that_is_gone_are_not_touched(
    client: Client, shop: Shop, change: str
) -> None:
    shop.place("o1")
    journal, shop.is_mended = shop.journal, True

    other = client.post(f"/dispatchers/shop/{change}", letters=[1], journal="of another folder")
    letters = shop.letters()
    shutil.rmtree(shop.folder)
    gone = client.post(f"/dispatchers/shop/{change}", letters=[1], journal=journal)

    assert (other.status_code, letters) == (409, ["o1"])
    assert "in another folder" in other.json()["error"]
    assert gone.status_code in (409, 503)
    assert shop.handled == []


def test_a_dispatcher_that_was_stopped_meanwhile_changes_nothing(client: Client, shop: Shop) -> None:
    shop.place("o1")
    changes = shop.changes()
    shop.dispatcher.stop()

    answers = [client.post(f"/dispatchers/shop/{change}", **body) for change, body in changes.items()]

    assert [answer.status_code for answer in answers] == [409] * 4
    assert all("shop: is STOPPED" in answer.json()["error"] for answer in answers)
    assert shop.letters() == ["o1"]


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


def test_scheduled_posts_are_cancelled_by_key(client: Client) -> None:
    with hanging() as central:
        kept = central.dispatcher.post_after(3600, JobEvent(Job.START), key="kept")
        gone = central.dispatcher.post_every(3600, JobEvent(Job.START), key="gone")

        answer = client.post("/dispatchers/central/cancel", keys=["gone", "missing"]).json()

        assert (answer["cancelled"], [each["key"] for each in answer["refused"]]) == (["gone"], ["missing"])
        assert (kept.is_done(), gone.is_done()) == (False, True)
        assert items(client, answer["change"])["gone"] == ("cancelled", "")


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


def test_changes_are_listed_newest_first(client: Client, shop: Shop) -> None:
    shop.place("o1", "o2")
    first, second = (
        client.post("/dispatchers/shop/discard", letters=[letter], journal=shop.journal).json()["change"]
        for letter in (1, 2)
    )

    found = client.json("/changes")

    assert [(each["number"], each["user"], each["operation"]) for each in found["items"]] == [
        (second, "tester", "discard"),
        (first, "tester", "discard"),
    ]
    assert [client.error(f"/changes/{each}")[0] for each in (second + 1, "x", "9" * 5000)] == [404] * 3


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
