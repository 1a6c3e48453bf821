"""The dead letters of a dispatcher's folder: listed, searched, one of them whole, also while the folder changes."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DeadLetters, JournalError
from dispatcher.ops import OpsConfig, ops_app
from dispatcher.ops.letter_folders import LetterFolder

from ...kit.journals import flip
from ...kit.scenarios import play
from ..cli.letters import WAIT_S, Order, OrderEvent, Other, OtherEvent, failing
from .client import Client
from .shop import ShopStage, running_shop

LETTERS = "/dispatchers/shop/dead-letters"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "letters"


@pytest.fixture
def shop(folder: Path) -> Iterator[AsyncDispatcher]:
    with failing(folder) as dispatcher:
        yield dispatcher


def place(shop: AsyncDispatcher, *entities: str, type: Order = Order.PLACED) -> None:
    for entity in entities:
        assert shop.post(OrderEvent(type, entity))
    assert shop.await_drained(WAIT_S)


def entities(found: Any) -> list[str]:
    return [each["entity"] for each in found["items"]]


SCENARIOS = {
    "letters are listed newest first": "place o1 o2 -> dead-letters#entity o2 o1 ; dead-letters#total,next,damage "
    "2:None:[] ; dead-letters?limit=1#number,event_class,event_type,attempts,error,is_declared "
    "2:Order:PLACED:1:ValueError:_no_stock:True",
    "a list goes on at its cursor while letters come": "place o1 o2 o3 -> dead-letters?limit=2#entity o3 o2 ; "
    "dead-letters?limit=2#next 2 | place o4 -> dead-letters?limit=2&after=2#entity o1 ; "
    "dead-letters?limit=2&after=2#next None",
    "a search finds letters with all its words, also of the traceback, in any case": "place o1 Oé | pay o1 | other -> "
    "dead-letters?search=O1#number 3 1 ; dead-letters?search=no+stock+o1+PAID#number 3 ; "
    "dead-letters?search=o%C3%89#number 2 ; dead-letters?search=other.placed+never#number 4 ; "
    "dead-letters?search=shop.py#number 4 3 2 1 ; dead-letters?search=nothing+like+it#number ; "
    "dead-letters?search=o1#total None ; dead-letters?search=#total 4",
    "what is not there is not found": "place o1 -> !dead-letters/17 404 ; !dead-letters/x 404 ; "
    "!/dispatchers/nobody/dead-letters 404 ; !dead-letters?after=x 400",
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_the_api_says(client: Client, folder: Path, script: str) -> None:
    with running_shop(folder) as shop:
        play(ShopStage(shop, client), script)


def test_each_look_reads_what_came_and_what_left_since(folder: Path, shop: AsyncDispatcher) -> None:
    one = LetterFolder(folder)
    place(shop, "o1", "o2", "o3")
    first = one.read()
    DeadLetters(folder).discard([2])
    place(shop, "o4")

    second = one.read()

    assert [letter.seq for letter in first.newest_first] == [3, 2, 1]
    assert [letter.seq for letter in second.newest_first] == [4, 3, 1]
    assert one.read() is second  # nothing has changed


def test_each_look_agrees_with_a_whole_reading_over_restarts(folder: Path) -> None:
    one = LetterFolder(folder)
    for run in range(3):
        with failing(folder) as shop:
            place(shop, f"o{run}a", f"o{run}b")
            one.read()
            DeadLetters(folder).discard([2 * run + 1])
            assert [each.seq for each in one.read().newest_first[::-1]] == [each.number for each in DeadLetters(folder)]
    assert one.read().damage == ()


def test_another_folder_in_its_place_is_read_from_its_beginning(folder: Path, tmp_path: Path) -> None:
    one = LetterFolder(folder)
    with failing(folder) as shop:
        place(shop, "o1", "o2")
        one.read()
    shutil.rmtree(folder)
    with failing(folder) as shop:
        place(shop, "other")

        assert [each.seq for each in one.read().newest_first] == [1]


def test_one_letter_is_shown_whole_and_its_event_if_payloads_are_shown(shop: AsyncDispatcher) -> None:
    place(shop, "o1")

    found = Client(ops_app()).json(f"{LETTERS}/1")
    with_payload = Client(ops_app(OpsConfig(show_payloads=True))).json(f"{LETTERS}/1")

    assert "in fail" in found["traceback"]
    assert (found["entity"], found["event"]) == ("o1", None)
    assert with_payload["event"] == {"type": 1, "entity": "o1"}
    assert found["journal"]


def test_a_search_reads_nothing_that_is_not_shown(shop: AsyncDispatcher) -> None:
    shop.register(Other, fail_quietly)
    assert shop.post(OtherEvent(Other.PLACED))
    assert shop.await_drained(WAIT_S)

    def count(config: OpsConfig) -> int:
        return len(Client(ops_app(config)).json(LETTERS, search="OtherEvent(")["items"])

    assert (count(OpsConfig()), count(OpsConfig(show_payloads=True))) == (0, 1)


def fail_quietly(event: object) -> None:
    raise ValueError


def test_letters_that_are_in_no_folder_and_a_number_without_end_are_not_found(
    client: Client, shop: AsyncDispatcher
) -> None:
    with failing(None) as none:
        none.name = "none"
        assert client.error("/dispatchers/none/dead-letters") == (404, "none: its dead letters are not in a folder")
        assert client.error(f"{LETTERS}/{'9' * 5000}")[0] == 404


# -- folders that are not as they should be ----------------------------------------------------------------------------


def test_damage_is_named_and_the_other_letters_are_listed(client: Client, folder: Path, shop: AsyncDispatcher) -> None:
    place(shop, "o1", "o2", "o3")
    [segment] = folder.glob(".segment-*")
    flip(segment, segment.read_bytes().index(b'"entity":"o2"'))

    found = client.json(LETTERS)

    assert entities(found) == ["o3", "o1"]
    assert "hold no intact frame" in found["damage"][0]


def test_a_cut_segment_is_listed_as_far_as_it_goes(client: Client, folder: Path, shop: AsyncDispatcher) -> None:
    place(shop, "o1", "o2")
    [segment] = folder.glob(".segment-*")
    content = segment.read_bytes()
    one = LetterFolder(folder)
    one.read()
    segment.write_bytes(content[:-20])

    assert entities(client.json(LETTERS)) == ["o1"]
    assert [letter.seq for letter in one.read().newest_first] == [1]
    segment.write_bytes(content)
    assert entities(client.json(LETTERS)) == ["o2", "o1"]


def test_a_folder_that_is_gone_or_unreadable_is_an_error_in_one_line(
    client: Client, folder: Path, shop: AsyncDispatcher
) -> None:
    place(shop, "o1")
    assert client.json(LETTERS)["total"] == 1
    away = folder.rename(folder.with_name("away"))

    assert client.error(LETTERS)[0] == 503

    folder.write_text("not a folder")
    assert client.error(LETTERS)[0] == 503
    folder.unlink()
    away.rename(folder)
    assert client.json(LETTERS)["total"] == 1


def test_a_dispatcher_that_has_not_been_started_has_no_folder_yet(client: Client, folder: Path) -> None:
    kept = AsyncDispatcher(name="shop", dead_letters=folder)

    assert client.error(LETTERS)[0] == 503
    assert kept


def test_requests_at_once_share_one_reading(
    folder: Path, shop: AsyncDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    place(shop, "o1")
    readings, enough = [], threading.Event()
    read = LetterFolder.read

    def counted(self: LetterFolder) -> Any:
        readings.append(self)
        assert enough.wait(WAIT_S)
        return read(self)

    monkeypatch.setattr(LetterFolder, "read", counted)
    client = Client(ops_app())

    async def many() -> list[int]:
        asked = [asyncio.ensure_future(client.send("GET", LETTERS)) for _ in range(8)]
        while not readings:
            await asyncio.sleep(0)
        enough.set()
        return [(await each).status_code for each in asked]

    assert asyncio.run(many()) == [200] * 8
    assert len(readings) <= 2


def test_a_reading_that_fails_is_not_continued(folder: Path, shop: AsyncDispatcher) -> None:
    one = LetterFolder(folder.with_name("missing"))

    with pytest.raises(JournalError, match="missing"):
        one.read()
