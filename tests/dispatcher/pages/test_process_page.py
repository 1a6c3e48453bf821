"""The page of the process."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from dispatcher import AsyncDispatcher, CompositeService, DispatcherConfig, Service
from dispatcher.ops import ops_app

from ..ops.client import Client
from .test_entities_page import page

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def client() -> Client:
    return Client(ops_app(name="shop"), prefix="")


class Broken(Service):
    def service_start(self) -> None:
        raise OSError("no <b>disk</b>")


def test_it_shows_the_tree_of_services_with_their_states_and_failures(client: Client) -> None:
    daemon, central, broken = CompositeService("daemon"), AsyncDispatcher(name="central"), Broken("store")
    daemon.add_service(central)
    daemon.add_service(broken)
    with pytest.raises(OSError, match="disk"):
        daemon.start()

    text = page(client, "/process")

    assert '<li>daemon <span class="chip bad">STOPPED</span> <span class="soft">CompositeService</span>' in text
    assert '<ul class="tree"><li>central ' in text
    assert "OSError: no &lt;b&gt;disk&lt;/b&gt;" in text


def test_it_shows_the_configuration_folded_and_marks_what_is_set(client: Client) -> None:
    central = AsyncDispatcher(DispatcherConfig(queue_capacity=7), name="central")

    text = page(client, "/process")

    assert '<summary>central (AsyncDispatcher) <span class="soft">set: queue_capacity</span></summary>' in text
    assert '<div class="set"><dt>queue_<wbr>capacity</dt><dd>7</dd></div>' in text
    assert "<details open" not in text
    assert central.name == "central"


def test_it_shows_versions_threads_and_open_files(client: Client) -> None:
    text = page(client, "/process")

    assert "<dt>Python</dt>" in text
    assert "MainThread" in text
    assert "Open files" in text
    assert "Apache-2.0" in text


class Settings(BaseModel):
    queues: list[dict[str, Any]] = []
    nodes: list[dict[str, Any]] = []
    tls: dict[str, str] | None = None
    level: int = 1


def test_lists_of_the_configuration_are_cut_and_their_items_have_names_and_no_secrets(client: Client) -> None:
    queue = {"name": "a", "capacity": 50, "queues": [{"name": "b", "state": "RUNNING", "limit": None}]}
    nodes = [{"host": f"n{number}", "vcores": 2, "rack": ""} for number in range(60)]
    shop = CompositeService("shop")
    shop.settings = Settings(queues=[queue], nodes=nodes, tls={"key_file": "/k"})  # type: ignore[attr-defined]

    text = page(client, "/process")

    assert '<span class="soft">set: queues, nodes, tls</span></summary>' in text
    assert 'queues.a"><summary>a</summary><dl class="settings"><div><dt>capacity</dt><dd>50</dd></div></dl>' in text
    assert "<div><dt>b</dt><dd>state RUNNING</dd></div></dl></details>" in text
    assert [f"<dt>n{number}</dt><dd>vcores 2</dd>" in text for number in (0, 49, 50)] == [True, True, False]
    assert '</dl><p class="note">And 10 more.</p></details>' in text
    assert "<dt>key_<wbr>file</dt><dd>(not shown)</dd>" in text
    assert "<div><dt>level</dt><dd>1</dd></div>" in text
