"""Lists in pages: sorted, cut by cursors, forward and back, and right for any data."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from ..inner import ListedColumn, ListPage, Query, first_page, page_of, parse

pytestmark = pytest.mark.long

COLUMNS = (ListedColumn("value", "Value", lambda item: item[0]), ListedColumn("note", "Note"))


def request(query: str) -> Request:
    scope = {"type": "http", "path": "/list", "query_string": query.encode(), "headers": [], "server": ("h", 1)}
    return Request({**scope, "scheme": "http", "method": "GET", "root_path": ""})


def asked(query: str) -> Query:
    return parse(request(query), COLUMNS, ("q",), "value", "desc")


def page(items: list[tuple[int, int]], query: str, rows: int = 3) -> ListPage[Any]:
    return asyncio.run(
        page_of(items, asked(query), lambda item: item[0], lambda item: (item[1],), lambda _: True, rows)
    )


@given(st.lists(st.integers(0, 5), max_size=25), st.sampled_from(["asc", "desc"]))
def test_pages_forward_show_every_row_once_in_order_and_backward_the_same_ones(values: list[int], order: str) -> None:
    items = [(value, number) for number, value in enumerate(values)]
    wanted = sorted(items, reverse=order == "desc")

    pages = [page(items, f"sort=value&order={order}")]
    while pages[-1].next is not None:
        pages.append(page(items, f"sort=value&order={order}&after={pages[-1].next}"))
    back = [pages[-1]]
    while back[-1].previous is not None:
        back.append(page(items, f"sort=value&order={order}&before={back[-1].previous}"))

    assert [item for each in pages for item in each.items] == wanted
    assert [each.items for each in back[::-1]] == [each.items for each in pages]
    assert [each.first for each in back[::-1]] == [each.first for each in pages]
    assert {each.total for each in pages} == {len(items)}


@given(st.sets(st.integers(0, 9)), st.sampled_from(["asc", "desc"]))
def test_the_first_page_of_items_in_order_is_found_without_looking_at_the_others(keys: set[int], order: str) -> None:
    items = [(value, value) for value in sorted(keys)]

    found = first_page({str(item): item for item in items}, asked(f"order={order}"), lambda item: item, 3)

    assert found == page(items, f"order={order}")


def test_a_cursor_stays_right_when_its_row_has_gone() -> None:
    items = [(value, value) for value in range(9)]
    first = page(items, "order=desc")

    rest = page([item for item in items if item != (6, 6)], f"order=desc&after={first.next}")

    assert rest.items == [(5, 5), (4, 4), (3, 3)]


def test_a_column_turns_round_when_it_is_sorted_by_again() -> None:
    query = asked("q=x&order=desc&after=WzFd")

    assert query.sorted_by(COLUMNS[0]) == "/list?q=x&sort=value&order=asc"
    assert query.address(after="c") == "/list?q=x&sort=value&order=desc&after=c"
