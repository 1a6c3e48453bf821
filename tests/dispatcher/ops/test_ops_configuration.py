"""What /configuration and the numbers of the process say."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, Field, RootModel, SecretStr

from dispatcher import (
    AsyncDispatcher,
    CompositeService,
    DispatcherConfig,
    JournalConfig,
    JournalWriter,
    MultiDispatcher,
    Service,
)
from dispatcher.ops import ops_app

from .client import WAIT_S, Client


class ShopConfig(BaseModel):
    broker: str = "redis://shop:hunter2@broker:6379/0"
    api_key: str = "hunter2"
    password: SecretStr = SecretStr("hunter2")
    tokens_file: Path | None = None
    dispatcher: DispatcherConfig = DispatcherConfig()


class Shop(CompositeService):
    def __init__(self, settings: Any) -> None:
        super().__init__("shop")
        self.settings = settings


class Broken(Service):
    @property
    def settings(self) -> object:
        raise RuntimeError("hunter2")


def configured(client: Client) -> dict[str, Any]:
    return {each["name"]: each for each in client.json("/configuration")["items"]}


def test_services_show_their_settings_with_the_defaults_and_without_secrets() -> None:
    shop = Shop(ShopConfig(dispatcher=DispatcherConfig(queue_capacity=7)))

    found = Client(ops_app()).get("/configuration")

    [settings] = [each for each in found.json()["items"] if each["name"] == "shop"]
    assert settings["class"] == "Shop"
    assert settings["settings"]["broker"] == "redis://(not shown)@broker:6379/0"
    assert settings["settings"]["dispatcher"]["queue_capacity"] == 7
    assert settings["defaults"]["dispatcher"]["queue_capacity"] is None
    assert "hunter2" not in found.text
    assert shop.name == "shop"


def test_what_services_share_and_what_is_a_part_comes_once(tmp_path: Path) -> None:
    config = ShopConfig()
    shop = Shop(config)
    shop.add_service(AsyncDispatcher(config.dispatcher, name="a part"))
    workers = MultiDispatcher(name="several", partitions=2)
    journal = JournalWriter(tmp_path / "journal", JournalConfig(buffer_rows=9))
    journaled = AsyncDispatcher(name="of journal", journal=journal)

    found = configured(Client(ops_app()))

    names = {"shop", "a part", "several", "several-0", "several-1", "of journal", "of journal, journal"} & found.keys()
    assert names == {"shop", "several", "of journal", "of journal, journal"}
    assert found["of journal, journal"]["settings"]["buffer_rows"] == 9
    assert (workers.name, journaled.name) == ("several", "of journal")
    journal.close()


@dataclass
class Store:
    user: str
    password: str
    note: str = field(default="hunter2", repr=False)


class Login(NamedTuple):
    user: str
    password: str


class Connection:
    def __repr__(self) -> str:
        return "Connection(user='shop', password='hunter2 x')"


@pytest.mark.parametrize(
    "setting",
    [
        {"stores": [Store("shop", "hunter2")]},
        {"logins": [Login("shop", "hunter2")]},
        {"connection": Connection()},
        {"store": "host=db user=shop password=hunter2"},
        {"hook": "https://hooks/?token=hunter2&user=shop"},
        {"store": "postgres://shop:hun/ter@hunter2@db/shop"},
        {"redis://shop:hunter2@broker": 1},
        {"db_pass": "hunter2"},
        {"headers": {"Authorization": "Bearer hunter2"}},
    ],
)
def test_secrets_are_hidden_wherever_their_names_are(setting: dict[str, Any]) -> None:
    shop = Shop(setting)

    found = Client(ops_app()).get("/configuration")

    assert "(not shown)" in found.text
    assert "hunter2" not in found.text
    assert shop.settings is setting


class Names(RootModel[list[str]]):
    """Settings that are no mapping."""


class Later(BaseModel):
    size: int = 1
    double: int = Field(default_factory=lambda before: before["size"] * 2)


def test_settings_that_are_a_list_or_whose_defaults_depend_on_others_are_shown() -> None:
    pytest.importorskip("pydantic", "2.10", reason="older ones know no default that depends on other values")
    names, later = Shop(Names(["a"])), Service("later")
    later.settings = Later()  # type: ignore[attr-defined]

    found = configured(Client(ops_app()))

    assert found["shop"]["settings"] == {"": ["a"]}
    assert found["later"]["settings"] == {"size": 1, "double": 2}
    assert found["later"]["defaults"] == {"size": 1}
    assert names.name == "shop"


@pytest.mark.parametrize(
    "settings", [{"when": float("inf")}, {"nested": [{"what": object()}]}, {"\ud800": "\ud800"}, {"self": None}]
)
def test_settings_that_are_no_json_are_shown_as_text(settings: dict[str, Any]) -> None:
    if "self" in settings:
        settings["self"] = settings
    shop = Shop(settings)

    assert configured(Client(ops_app()))["shop"]["defaults"] is None
    assert shop.settings is settings


def test_settings_that_raise_are_left_out() -> None:
    broken = Broken("broken")

    assert "broken" not in configured(Client(ops_app()))
    assert broken.name == "broken"


def test_the_process_tells_versions_and_its_threads_without_their_stacks() -> None:
    client, ended = Client(ops_app()), threading.Event()
    thread = threading.Thread(target=ended.wait, args=(WAIT_S,), name="a thread of the test")
    thread.start()

    process, threads = client.json("/process"), client.json("/process/threads", limit=1000)["items"]

    ended.set()
    thread.join(WAIT_S)
    assert {"platform", "pydantic", "starlette"} <= process["versions"].keys()
    [found] = [each for each in threads if each["name"] == thread.name]
    assert found.keys() == {"name", "native_id", "daemon", "cpu_s"}
    assert found["native_id"] == thread.native_id
