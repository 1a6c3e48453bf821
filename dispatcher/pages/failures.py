"""/failures: equal failures as one row each, and the dead letters of each dispatcher: a list with a search, and a page
for each letter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.routing import BaseRoute

from dispatcher.errors import DispatcherError
from dispatcher.letter_target import StoredLetter
from dispatcher.ops import dispatchers as of_dispatchers
from dispatcher.ops import letters as of_letters
from dispatcher.ops.answers import MOST_SEQ
from dispatcher.ops.letter_folders import FoundLetters
from dispatcher.ops.letters import Search
from dispatcher.ops.sampler import Sampler
from dispatcher.ops.sight import Sight
from dispatcher.pages import changes
from dispatcher.pages.site import Site, View
from dispatcher.view import DispatcherView
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.queries import number

PATH: Final = "/failures"
LETTERS: Final = "/failures/letters"
LETTER: Final = "/failures/letter"
ROWS: Final = 100
_GROUPS_SHOWN: Final = 60
_FOLDERS_SHOWN: Final = 50
_SOON_S: Final = 0.05
"""How long a page waits for a folder that is read for the first time."""
_LONGEST_EVENT: Final = 20_000


def routes(site: Site) -> Sequence[BaseRoute]:
    pages = {PATH: failures_view, LETTERS: letters_view, LETTER: letter_view}
    return [*(site.get(path, view) for path, view in pages.items()), *changes.routes(site)]


# -- equal failures ----------------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    dispatcher: str
    group: of_dispatchers.FailureGroup

    @property
    def key(self) -> str:
        return f"{self.dispatcher} {self.group.name} {self.group.error_class}"


class _Folder(NamedTuple):
    """The dead letters of one dispatcher, as a row."""

    dispatcher: str
    since_start: int
    lost: int
    there: int | None
    """In the folder; None: not known, or not for the user."""
    link: str | None
    """To the list, below the root; None: they are not in a folder."""
    problem: str


async def failures_view(site: Site, request: Request) -> View:
    views, sight = site.ops.views(), await site.sight(request)
    sampler = site.ops.sampler
    groups = await site.ops.workers.run(lambda: _groups(views, sampler, sight))
    keeping = [view for view in views if view.dead_letters is not None]
    folders = await asyncio.gather(*(_folder(site, view, sight) for view in keeping[:_FOLDERS_SHOWN]))
    values = {
        "groups": groups[:_GROUPS_SHOWN],
        "groups_left_out": max(0, len(groups) - _GROUPS_SHOWN),
        "folders": folders,
        "folders_left_out": max(0, len(keeping) - _FOLDERS_SHOWN),
    }
    return View("failures.html", "Failures", values, "failures", ("groups", "folders"), is_clocked=True)


def _groups(views: Sequence[DispatcherView], sampler: Sampler, sight: Sight) -> list[_Group]:
    found = [
        _Group(view.name, group) for view in views for group in of_dispatchers.failure_groups(view, sampler, sight)
    ]
    return sorted(found, key=lambda each: -each.group.last)


async def _folder(site: Site, view: DispatcherView, sight: Sight) -> _Folder:
    target = view.dead_letters
    assert target is not None
    there, problem, link = None, "", None
    if target.folder is not None:
        link = address_of(view.name)
        try:
            found = await _soon(site, view)
            there = len(found.newest_first) if found is not None and sight.is_whole else None
        except (DispatcherError, Refusal) as error:
            problem = str(error) if sight.is_whole else "cannot be read"
    return _Folder(view.name, target.count, target.lost, there, link, problem)


async def _soon(site: Site, view: DispatcherView) -> FoundLetters | None:
    """The letters of its folder; None: they are still being read."""
    reading = asyncio.ensure_future(site.ops.letters.read(of_letters.folder_of(view)))
    done, _ = await asyncio.wait({reading}, timeout=_SOON_S)
    if done:
        return reading.result()
    reading.add_done_callback(_forget)
    return None


def _forget(reading: asyncio.Future[FoundLetters]) -> None:
    """Retrieve the error, or asyncio logs it. The next request reads the folder again and shows the error."""
    if not reading.cancelled():
        reading.exception()


# -- dead letters ------------------------------------------------------------------------------------------------------


async def letters_view(site: Site, request: Request) -> View:
    view, search = dispatcher_of(site, request), await of_letters.search_of(site.ops, request)
    below = number(request, "after", MOST_SEQ, 0, MOST_SEQ)
    found = await _soon(site, view)
    items = [] if found is None else await site.ops.workers.run(lambda: _first(search, found, below))
    may_change = await site.may_change(request)
    values = {
        "dispatcher": view.name,
        "search": request.query_params.get("search", ""),
        "is_read": found is not None,
        "damage": found.damage if found is not None and search.sight.is_whole else (),
        "journal": found.journal if found is not None else "",
        "total": len(found.newest_first) if found is not None and search.sight.is_whole else None,
        "is_first": below == MOST_SEQ,
        "next": address_of(view.name, request, after=str(items[ROWS - 1].number)) if len(items) > ROWS else None,
        "first": address_of(view.name, request),
        "may_select": may_change and bool(items),
        "most_at_once": changes.MOST_AT_ONCE,
    }
    rows = _rows(site, request, view, items[:ROWS], search.sight, may_change=may_change)
    title = f"Dead letters of {view.name}"
    parts = ("damage", "pager")
    return View("letters.html", title, values, "failures", parts, rows, is_clocked=True, is_partial=found is None)


def _first(search: Search, found: FoundLetters, below: int) -> list[of_letters.Letter]:
    return of_letters.letter_items(search.matches(found, below), ROWS + 1, search.sight)


def _rows(
    site: Site,
    request: Request,
    view: DispatcherView,
    items: Sequence[of_letters.Letter],
    sight: Sight,
    *,
    may_change: bool,
) -> Mapping[str, Markup]:
    template, root = site.templates.get_template("letter_row.html"), site.root(request)
    return {
        str(each.number): Markup(
            template.render(
                letter=each, may_change=may_change, root=root, link=letter_address(view.name, each.number)
            ).strip()
        )
        for each in items
    }


async def letter_view(site: Site, request: Request) -> View:
    view, search = dispatcher_of(site, request), await of_letters.search_of(site.ops, request)
    wanted = number(request, "number", None, 0, MOST_SEQ)
    if wanted is None:
        raise Refusal(400, "number: expected the number of a dead letter")
    found = await site.ops.letters.read(of_letters.folder_of(view))
    letter: StoredLetter = await site.ops.workers.run(lambda: of_letters.find_letter(found, wanted, search.sight))
    shown = of_letters.whole_letter(letter, found.journal, search)
    values = {
        "letter": shown,
        "dispatcher": view.name,
        "list": address_of(view.name),
        "event": json.dumps(shown.event, indent=2, ensure_ascii=False)[:_LONGEST_EVENT]
        if search.shows_payloads
        else None,
        "sees_all": search.sight.is_whole,
        "change": urlencode({"dispatcher": view.name, "letter": wanted, "journal": found.journal}),
    }
    return View("letter.html", f"Dead letter {wanted} of {view.name}", values, "failures")


# -- what an address asks ----------------------------------------------------------------------------------------------


def dispatcher_of(site: Site, request: Request) -> DispatcherView:
    """The dispatcher that the query names. Raises Refusal (400, 404)."""
    return changes.dispatcher_of(site, request.query_params.get("dispatcher", ""))


def address_of(dispatcher: str, request: Request | None = None, **more: str) -> str:
    """The list of a dispatcher's letters, below the root, with the search of the request."""
    search = request.query_params.get("search", "") if request is not None else ""
    query = {"dispatcher": dispatcher, **({"search": search} if search else {}), **more}
    return f"{LETTERS}?{urlencode(query, errors='backslashreplace')}"


def letter_address(dispatcher: str, letter: int) -> str:
    return f"{LETTER}?{urlencode({'dispatcher': dispatcher, 'number': letter}, errors='backslashreplace')}"
