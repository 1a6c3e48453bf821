"""The pages of entities: machines with their numbers, the list, and one entity."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from urllib.parse import parse_qsl, urlsplit

import pytest

from dispatcher.metrics import DeclaredTransition
from dispatcher.ops import ops_app

from ..ops.client import Client
from ..ops.stage import keep
from ..ops.test_ops_entities import Things

pytestmark = pytest.mark.usefixtures("alone")


class Orders(Things):
    """A source of `count` orders, each of which is PAID but the last, which is STUCK."""

    last_event = "PAY"

    def __init__(self, count: int = 3, machine: str = "Order") -> None:
        ids = [f"order_{number:06}" for number in range(count)]
        super().__init__(machine, **{id: ("STUCK" if id == ids[-1] else "PAID", 1_700_000_000.0) for id in ids})

    def declared_transitions(self, machine: str) -> list[DeclaredTransition]:
        return [DeclaredTransition("NEW", "PAY", "PAID"), DeclaredTransition("PAID", "HANG", "STUCK")]


@pytest.fixture
def client() -> Client:
    return Client(ops_app(), prefix="")


def page(client: Client, path: str, **query: str) -> str:
    answer = client.get(path, **query)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8"), answer.text
    return answer.text


def test_a_machine_is_drawn_with_the_number_of_entities_in_each_state_which_leads_to_their_list(client: Client) -> None:
    orders = Orders(1001)

    text = page(client, "/entities")

    [graph] = re.findall(r'<svg class="graph".*?</svg>', text, re.DOTALL)
    assert "1,001 entities, 10 transitions" in text
    assert "1 event refused" in text
    assert re.search(r'<a href="/entities\?machine=Order&amp;state=PAID"><g class="state taken">.*?>1,000<', graph)
    assert 'state=NEW"><g class="state vacant">' in graph
    del orders


def test_the_only_machine_is_listed_at_once_and_one_of_several_when_it_is_chosen(client: Client) -> None:
    orders = Orders(3)
    alone = page(client, "/entities")
    other = Orders(3, "Parcel")
    together, chosen = page(client, "/entities"), page(client, "/entities", machine="Parcel")

    assert 'href="/entity/order_000000?machine=Order"' in alone
    assert "/entity/order_000000" not in together
    assert 'href="/entity/order_000000?machine=Parcel"' in chosen
    del orders, other


def test_the_list_shows_state_age_and_last_event_and_leads_to_its_next_page(client: Client) -> None:
    orders = Orders(250)

    first = page(client, "/entities", machine="Order", prefix="order_0")
    [following] = re.findall(r'rel="next" href="([^"]+)"', first)
    second = page(client, "/entities", **dict(parse_qsl(urlsplit(unescape(following)).query)))

    assert first.count('<td class="id">') == second.count('<td class="id">') == 100
    assert '<span data-since="1700000000000">' in first
    assert ">PAY<" in first
    assert "order_000100" in second
    assert "order_000099<" not in second
    del orders


class Undeclared(Orders):
    def declared_transitions(self, machine: str) -> list[DeclaredTransition]:
        return []


@pytest.mark.parametrize(
    "source", [lambda: Undeclared(2), lambda: Things("Order", order_000000=("PAID", 1), order_000001=("STUCK", 1))]
)
def test_a_machine_without_a_table_has_its_counts_without_a_drawing(
    client: Client, source: Callable[[], Things]
) -> None:
    orders = source()

    text = page(client, "/entities")

    assert 'state=PAID">PAID <strong>1</strong>' in text
    assert "2 entities" in text
    assert "<svg" not in text
    assert "There is no drawing of this machine." in page(client, "/entity/order_000000")
    del orders


def test_an_entity_has_its_path_and_its_transitions_with_links_below_the_prefix(client: Client) -> None:
    orders = Orders(3)
    keep(("order_000001", "Order", "NEW", "PAY", "PAID"), since_s=1_700_000_000)

    text = page(client, "/entity/order_000001", machine="Order")

    assert '<g class="state now">' in text
    assert re.search(r"<td[^>]*>NEW</td>.*?PAY.*?PAID", text, re.DOTALL)
    assert 'href="/entities?machine=Order"' in text
    del orders


def test_ids_and_machines_never_become_markup(client: Client) -> None:
    hostile = "<script>alert(1)</script>\u202e&"
    orders = Orders(1, hostile)
    orders.states = {hostile: ("STUCK", 1.0)}

    texts = [page(client, "/entities"), page(client, f"/entity/{'%3Cscript%3Ealert(1)%3C/script%3E%E2%80%AE&'}")]
    texts.append(page(client, "/entities", machine=hostile, prefix='"><img src=x onerror=alert(1)>'))

    for text in texts:
        assert "alert(1)</script>" not in text
        assert "<img" not in text
        assert "\u202e" not in text
    del orders


def test_what_is_unknown_is_not_found(client: Client) -> None:
    orders = Orders(1)

    assert client.get("/entities", machine="Parcel").status_code == 404
    assert client.get("/entity/nobody").status_code == 404
    assert client.get("/entity/order_000000", after="x").status_code == 400
    del orders
