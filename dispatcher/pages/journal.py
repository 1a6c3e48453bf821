"""/journal: what a journal holds, what is damaged, what was accepted and not handled, and its last events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.routing import BaseRoute

from dispatcher.ops.answers import MOST_SEQ
from dispatcher.ops.journal_contents import CHECK_S, check_journal, journal_details, outstanding_events
from dispatcher.ops.journals import ScanDeadline, WantedEvents, journaled_view, tail_rows
from dispatcher.ops.shared import Ops
from dispatcher.ops.sight import Sight
from dispatcher.pages.lookups import Looked, Lookups
from dispatcher.pages.site import Site, View
from dispatcher.service import ServiceState
from dispatcher.view import DispatcherView
from dispatcher.web.queries import number

PATH: Final = "/journal"
_TAIL_SHOWN: Final = 100
_OUTSTANDING_SHOWN: Final = 20
_SEGMENTS_OPEN: Final = 5
"""Segments that are not folded."""
_LOOK_S: Final = 3.0
"""Longest time that the page reads for its last events, and for what is outstanding."""


def routes(site: Site) -> Sequence[BaseRoute]:
    lookups = Lookups(site.ops.scans)
    return [site.get(PATH, partial(journal_view, lookups))]


async def journal_view(lookups: Lookups, site: Site, request: Request) -> View:
    query, root = request.query_params, site.root(request)
    views = [view for view in site.ops.views() if view.journal_path is not None]
    if not views:
        return View("journal.html", "Journal", {"names": [], "journal": None}, "journal")
    names = list(dict.fromkeys(view.name for view in sorted(views, key=_rank)))
    name = query.get("dispatcher") or names[0]
    view, path = journaled_view(views, name)
    sight = await site.sight(request)
    before, after = (number(request, each, None, 0, MOST_SEQ) for each in ("before", "after"))
    asked = {each: query.get(each, "") for each in ("event_class", "event_type", "entity")}
    if asked["entity"]:
        sight.check(asked["entity"])
    look = partial(_look, lookups, name, sight)

    def address(**more: object) -> str:
        """Of this page, about the same journal, with these events."""
        given = {"dispatcher": name, **asked, **more}
        return f"{root}{PATH}?{urlencode({key: each for key, each in given.items() if each}, errors='replace')}"

    values: dict[str, Any] = {
        "names": names,
        "name": name,
        **asked,
        "before": before,
        "address": address,
        "segments_open": _SEGMENTS_OPEN,
        "tail_shown": _TAIL_SHOWN,
        "outstanding_shown": _OUTSTANDING_SHOWN,
        "journal": await look("journal", lambda: journal_details(view, path)),
        "checked": None,
    }
    if "check" in query:
        values["checked"] = await _checked(site.ops, path, after)
        return View("journal.html", "Journal", {**values, "tail": None, "outstanding": None}, "journal")
    wanted = WantedEvents(**{key: each or None for key, each in asked.items()}, before_seq=before, sight=sight)
    values["tail"] = await look(("tail", *asked.values(), before), partial(_tail, path, wanted))
    values["outstanding"] = await look("outstanding", partial(_outstanding, view, path, sight))
    return View("journal.html", "Journal", values, "journal", ("journal", "outstanding", "tail"), is_clocked=True)


def _rank(view: DispatcherView) -> tuple[bool, str]:
    return view.state is not ServiceState.STARTED, view.name


async def _look(lookups: Lookups, name: str, sight: Sight, key: object, function: Callable[[], Any]) -> Looked:
    """Who may see everything shares what was looked up."""
    return await lookups.look((name, key) if sight.is_whole else None, function)


async def _checked(ops: Ops, path: Path, after: int | None) -> Any:
    return await ops.scans.run(lambda: check_journal(path, after, ScanDeadline(CHECK_S)))


def _tail(path: Path, wanted: WantedEvents) -> list[dict[str, Any]]:
    """The newest first, and one more than is shown."""
    return tail_rows(path, _TAIL_SHOWN + 1, wanted, None, ScanDeadline(_LOOK_S), payloads=False)[::-1]


def _outstanding(view: DispatcherView, path: Path, sight: Sight) -> Any:
    """None: the journal is no write-ahead log."""
    if view.journal_config is None or not view.journal_config.write_ahead:
        return None
    return outstanding_events(path, _OUTSTANDING_SHOWN, 0, ScanDeadline(_LOOK_S), sight)
