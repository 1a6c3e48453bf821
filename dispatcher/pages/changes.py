"""/changes: the questions before a change, which name what it will do, and the page that tells what became of it.

A question is a page with a form, whose POST makes the change and leads to that page. So all work without JavaScript.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlencode

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from dispatcher.letter_target import MOST_AT_ONCE
from dispatcher.ops import changes as of_changes
from dispatcher.ops import letters as of_letters
from dispatcher.ops.letters import Search
from dispatcher.pages.site import Form, Site, View
from dispatcher.service import ServiceState
from dispatcher.util.figures import counted
from dispatcher.view import DispatcherView
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.security import describe_write

__all__ = ["MOST_AT_ONCE", "dispatcher_of", "routes"]

PATH: Final = "/changes"
_LISTED: Final = 50
"""How many letters or keys a question names one by one."""


class Subject(NamedTuple):
    """One of what a change is about."""

    name: str
    detail: str


@dataclass(frozen=True, slots=True)
class Question:
    """What a change will do, and what its form sends."""

    title: str
    text: str
    button: str
    back: str
    """The address, below the root, of the page from which the user came."""
    subjects: Sequence[Subject] = ()
    fields: Sequence[tuple[str, str]] = ()
    is_dangerous: bool = False
    hindrance: str = ""
    """Why it cannot be done now."""
    notes: Sequence[str] = field(default_factory=tuple)


Ask = Callable[[Site, Request], Awaitable[Question]]
Make = Callable[[Site, Request, Form], Awaitable[int]]
"""Makes the change; returns its number."""
LetterChange = Callable[..., Awaitable[of_changes.Redelivered | of_changes.Discarded]]


def routes(site: Site) -> Sequence[BaseRoute]:
    found: list[BaseRoute] = [site.get(PATH, _list)]
    for name, (ask, make) in _CHANGES.items():
        path = f"{PATH}/{name}"
        found.append(site.get(path, partial(_question, path, ask)))
        found.append(Route(path, site.form(partial(_make, site, make)), methods=["POST"]))
    return [*found, site.get(f"{PATH}/{{number}}", _made)]


def dispatcher_of(site: Site, name: str) -> DispatcherView:
    """The dispatcher of that name. Raises Refusal (400, 404)."""
    if not name:
        raise Refusal(400, "dispatcher: expected the name of a dispatcher")
    return site.ops.named(name)


# -- pages -------------------------------------------------------------------------------------------------------------


async def _question(path: str, ask: Ask, site: Site, request: Request) -> View:
    site.check_control(request)
    await of_changes.check_sight(site.ops, request)
    asked = await ask(site, request)
    values = {"question": asked, "action": path, "listed": _LISTED}
    return View("question.html", asked.title, values)


async def _make(site: Site, make: Make, request: Request, form: Form) -> View | str:
    return f"{PATH}/{await make(site, request, form)}"


async def _list(site: Site, request: Request) -> View:
    site.check_control(request)
    found = await of_changes.last_changes(site.ops, request)
    return View("changes.html", "Changes", {"changes": found}, "", ("changes",), is_clocked=True)


async def _made(site: Site, request: Request) -> View:
    site.check_control(request)
    change = await of_changes.find_change(site.ops, request)
    title = f"{change.operation.capitalize()}: what became of it"
    values = {"change": change, "back": _BACK.get(change.operation, "/dispatcher"), "styles": _STYLES}
    return View("made.html", title, values, "", ("made",), is_clocked=True)


_BACK: Final = {"cancel": "/scheduled", "redeliver": "/failures", "discard": "/failures"}
_STYLES: Final = {
    "handled": "good",
    "discarded": "good",
    "cancelled": "good",
    "stopped": "good",
    "posted": "run",
    "stopping": "run",
    "left": "wait",
}


# -- dead letters ------------------------------------------------------------------------------------------------------


async def _ask_letters(verb: str, text: str, is_dangerous: bool, site: Site, request: Request) -> Question:
    query = request.query_params
    view = dispatcher_of(site, query.get("dispatcher", ""))
    found = await site.ops.letters.read(of_letters.folder_of(view))
    if "matching" in query:
        search = Search(query.get("search", ""), shows_payloads=site.ops.config.show_payloads)
        wanted = None
    else:
        search, wanted = Search(), frozenset(_numbers(query.getlist("letter")))
    matches = await site.ops.workers.run(
        lambda: of_letters.letter_items(search.matches(found, among=wanted), MOST_AT_ONCE)
    )
    back = f"/failures/letters?{urlencode({'dispatcher': view.name}, errors='backslashreplace')}"
    letters = counted(len(matches), "dead letter")
    undeclared = sum(not each.is_declared for each in matches)
    notes = []
    if undeclared and not is_dangerous:
        notes.append(f"{counted(undeclared, 'letter')} of an event class that was not declared will be rejected.")
    hindrance = _hindrance(view)
    if not matches:
        hindrance = "No dead letter is chosen, or those chosen are no longer there."
    return Question(
        f"{verb} {letters}?",
        text.format(letters=letters, dispatcher=view.name),
        f"{verb} {letters}",
        back,
        [_subject(each) for each in matches],
        [("dispatcher", view.name), ("journal", found.journal), *(("letter", str(each.number)) for each in matches)],
        is_dangerous,
        hindrance,
        notes,
    )


def _subject(letter: of_letters.Letter) -> Subject:
    entity = f" of {letter.entity}" if letter.entity else ""
    return Subject(str(letter.number), f"{letter.name}{entity}: {letter.error}")


async def _change_letters(operation: str, change: LetterChange, site: Site, request: Request, form: Form) -> int:
    describe_write(request.scope, operation=f"{operation} dead letters", target=_first(form, "dispatcher"))
    view, numbers = dispatcher_of(site, _first(form, "dispatcher")), _numbers(form.get("letter", ()))
    if not numbers:
        raise Refusal(400, "no dead letter is chosen")
    wanted = of_changes.letters_request({"letters": numbers, "journal": _first(form, "journal")})
    return (await change(site.ops, request, view, *wanted)).change


def _numbers(texts: Sequence[str]) -> list[int]:
    if not all(each.isascii() and each.isdigit() and len(each) <= 18 for each in texts):
        raise Refusal(400, "letter: expected the number of a dead letter")
    if len(texts) > MOST_AT_ONCE:
        raise Refusal(400, f"letter: expected at most {MOST_AT_ONCE} numbers")
    return [int(each) for each in texts]


# -- scheduled posts ---------------------------------------------------------------------------------------------------


async def _ask_cancel(site: Site, request: Request) -> Question:
    query = request.query_params
    view, keys = dispatcher_of(site, query.get("dispatcher", "")), query.getlist("key")
    of_changes.keys_request({"keys": keys})
    what = keys[0] if len(keys) == 1 else counted(len(keys), "scheduled post")
    return Question(
        f"Cancel {what}?",
        f"{view.name} will not post what is scheduled under {'this key' if len(keys) == 1 else 'these keys'}, and a "
        "periodic post ends. With a journal, the next start doesn't bring it back. The program can schedule it again.",
        f"Cancel {what}",
        "/scheduled",
        [Subject(key, "") for key in keys],
        # A form makes a line break in a value another one.
        [("dispatcher", view.name), *(("key", quote(key, safe="", errors="backslashreplace")) for key in keys)],
        True,
        _hindrance(view),
    )


async def _cancel(site: Site, request: Request, form: Form) -> int:
    describe_write(request.scope, operation="cancel scheduled posts", target=_first(form, "dispatcher"))
    view = dispatcher_of(site, _first(form, "dispatcher"))
    keys = of_changes.keys_request({"keys": [unquote(key) for key in form.get("key", ())]})
    return (await of_changes.cancel(site.ops, request, view, keys)).change


# -- dispatchers -------------------------------------------------------------------------------------------------------


async def _ask_stop(site: Site, request: Request) -> Question:
    view = dispatcher_of(site, request.query_params.get("dispatcher", ""))
    whole = view.group.name if view.group is not None else view.name
    stats = await site.ops.workers.run(view.stats)
    notes = [f"{view.name} is a partition of {whole}, which is stopped as a whole."] if whole != view.name else []
    return Question(
        f"Stop {whole}?",
        f"{whole} will reject posts from now on, and handle what is queued, within its drain timeout. It can't be "
        f"started again: that takes a restart of the process. {view.name} has {counted(stats.queue_size, 'event')} "
        f"queued now, {stats.retrying:,} retrying, and {counted(stats.scheduled, 'scheduled post')}.",
        f"Stop {whole}",
        "/dispatcher",
        fields=[("dispatcher", view.name)],
        is_dangerous=True,
        hindrance=_hindrance(view),
        notes=notes,
    )


async def _stop(site: Site, request: Request, form: Form) -> int:
    view = dispatcher_of(site, _first(form, "dispatcher"))
    return (await of_changes.stop(site.ops, request, view)).change


def _hindrance(view: DispatcherView) -> str:
    if view.state is ServiceState.STARTED:
        return ""
    return f"{view.name} is {view.state.name}: only a dispatcher that runs can do this."


def _first(form: Form, name: str) -> str:
    return next(iter(form.get(name, ())), "")


_CHANGES: Final[dict[str, tuple[Ask, Make]]] = {
    "redeliver": (
        partial(
            _ask_letters,
            "Redeliver",
            "{letters} of {dispatcher} will be posted to it again, as first attempts. Each that it accepts leaves the "
            "folder. If its handler fails again, it becomes a new dead letter.",
            False,
        ),
        partial(_change_letters, "redeliver", of_changes.redeliver),
    ),
    "discard": (
        partial(
            _ask_letters,
            "Discard",
            "{letters} of {dispatcher} will be removed from the folder for good. Their events won't be handled.",
            True,
        ),
        partial(_change_letters, "discard", of_changes.discard),
    ),
    "cancel": (_ask_cancel, _cancel),
    "stop": (_ask_stop, _stop),
}
