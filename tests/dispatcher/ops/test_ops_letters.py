"""The dead letters of a dispatcher's folder: listed, searched, one of them whole, also while the folder changes."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DeadLetters
from dispatcher.ops import OpsConfig, letter_folders, ops_app

from ...kit.scenarios import play
from ..cli.letters import WAIT_S
from .client import Client
from .shop import Shop, ShopStage, running_shop

LETTERS = "/dispatchers/shop/dead-letters"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "letters"


@pytest.fixture
def shop(folder: Path) -> Iterator[Shop]:
    with running_shop(folder) as found:
        yield found


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
def test_the_api_says(client: Client, shop: Shop, script: str) -> None:
    play(ShopStage(shop, client), script)


def numbers(client: Client) -> list[int]:
    return [each["number"] for each in client.json(LETTERS)["items"]]


def test_each_look_agrees_with_a_whole_reading_over_restarts(client: Client, folder: Path) -> None:
    for run in range(3):
        with running_shop(folder) as shop:
            shop.place(f"o{run}a", f"o{run}b")
            assert len(numbers(client)) == run + 2
            DeadLetters(folder).discard([2 * run + 1])
            assert numbers(client)[::-1] == [each.number for each in DeadLetters(folder)]
            assert client.json(LETTERS)["damage"] == []
    one = letter_folders.LetterFolder(folder)
    assert one.read() is one.read(), "nothing has changed"


def test_another_folder_in_its_place_is_read_from_its_beginning(client: Client, folder: Path) -> None:
    with running_shop(folder) as shop:
        shop.place("o1", "o2")
        assert numbers(client) == [2, 1]
    shutil.rmtree(folder)
    with running_shop(folder) as shop:
        shop.place("other")

        assert numbers(client) == [1]


def test_one_letter_is_shown_whole_and_its_event_if_payloads_are_shown(shop: Shop) -> None:
    shop.place("o1")

    found = Client(ops_app()).json(f"{LETTERS}/1")
    with_payload = Client(ops_app(OpsConfig(show_payloads=True))).json(f"{LETTERS}/1")

    assert "in handle" in found["traceback"]
    assert (found["entity"], found["event"]) == ("o1", None)
    assert with_payload["event"] == {"type": 1, "entity": "o1"}
    assert found["journal"]


def test_a_search_reads_nothing_that_is_not_shown(client: Client, shop: Shop) -> None:
    play(ShopStage(shop, client), "other -> dead-letters#total 1")

    def count(config: OpsConfig) -> int:
        return len(Client(ops_app(config)).json(LETTERS, search="OtherEvent(type")["items"])

    assert (count(OpsConfig()), count(OpsConfig(show_payloads=True))) == (0, 1)


def test_letters_that_are_in_no_folder_and_a_number_without_end_are_not_found(client: Client, shop: Shop) -> None:
    none = AsyncDispatcher(name="none")

    assert client.error(f"/dispatchers/{none.name}/dead-letters") == (404, "none: its dead letters are not in a folder")
    assert client.error(f"{LETTERS}/{'9' * 5000}")[0] == 404


def test_a_cut_segment_is_listed_as_far_as_it_goes(client: Client, folder: Path, shop: Shop) -> None:
    shop.place("o1", "o2")
    assert numbers(client) == [2, 1]
    [segment] = folder.glob(".segment-*")
    content = segment.read_bytes()

    segment.write_bytes(content[:-20])

    assert numbers(client) == numbers(Client(ops_app())) == [1]
    segment.write_bytes(content)
    assert numbers(client) == [2, 1]


def test_a_dispatcher_that_has_not_been_started_has_no_folder_yet(client: Client, folder: Path) -> None:
    kept = AsyncDispatcher(name="shop", dead_letters=folder)

    assert client.error(LETTERS)[0] == 503
    assert kept


def test_requests_at_once_share_one_reading(client: Client, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.place("o1")
    readings, enough = [], threading.Event()
    read = letter_folders.LetterFolder.read

    def counted(self: Any) -> Any:
        readings.append(self)
        assert enough.wait(WAIT_S)
        return read(self)

    monkeypatch.setattr(letter_folders.LetterFolder, "read", counted)

    async def many() -> list[int]:
        asked = [asyncio.ensure_future(client.send("GET", LETTERS)) for _ in range(8)]
        while not readings:
            await asyncio.sleep(0)
        enough.set()
        return [(await each).status_code for each in asked]

    assert asyncio.run(many()) == [200] * 8
    assert len(readings) <= 2
