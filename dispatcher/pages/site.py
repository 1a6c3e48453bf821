"""What all pages share: templates, the notice of trouble, users, compression, errors, forms, and live updates.

A page is a function from a request to a `View`. Its address answers with the whole page as HTML; a script that asks the
same address for events gets, once a second, those parts and rows of it that have changed.

Threads: the loop's thread.
"""

from __future__ import annotations

import asyncio
import re
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, quote

from jinja2 import ChoiceLoader, Environment, PackageLoader, Template
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from dispatcher.errors import DispatcherError
from dispatcher.ops.shared import Ops
from dispatcher.ops.sight import Sight
from dispatcher.pages import page_texts
from dispatcher.supervision.health import health
from dispatcher.util.http_heads import takes
from dispatcher.util.terminal import one_line
from dispatcher.web import endpoints
from dispatcher.web.endpoints import guarded, zipped
from dispatcher.web.events import event_bytes, event_stream, stream_source
from dispatcher.web.origins import is_own_page
from dispatcher.web.pages import environment
from dispatcher.web.plain_answers import SECURITY_HEADERS, Refusal
from dispatcher.web.security import Principal, audited
from dispatcher.web.waiting import KeptResults

TICK_S: Final = 1.0
QUIET_S: Final = 2.0
"""How often a page is made anew while nothing is published: not all that it shows is part of a publication."""
SIGN_OF_LIFE_S: Final = 5.0
"""How often a script hears from the server that its page is still up to date."""
UNKNOWN: Final = -1
"""The number of a page that shows no publication, or that lacks a part of it."""
_BUSY: Final = (429, 503)
_BASE: Final = "base.html"
_NOTICE: Final = "notice"
_ZIP_LEVEL: Final = 4
_MOST_FIELDS: Final = 1000
_NUMBER: Final = re.compile("[0-9]{1,18}")
_PACKAGE: Final = "dispatcher.pages"
_STATIC: Final = {"style.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8"}
_HEADERS: Final = {name.decode(): value.decode() for name, value in SECURITY_HEADERS}
"""For the pages of an app that another server serves; a WebHost would add the same."""


class NavEntry(NamedTuple):
    """One entry of the navigation."""

    name: str
    """The `section` of the pages at which it is marked."""
    title: str
    path: str
    """Below the site's root."""


@dataclass(frozen=True, slots=True)
class View:
    """The content of one page."""

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    section: str = ""
    """The entry of the navigation that is marked."""
    parts: tuple[str, ...] = ()
    """Blocks of the template that are renewed live; each is one element with the id `part-NAME`."""
    rows: Mapping[str, Markup] | None = None
    """The rows of the page's table with the id `rows`, by key; renewed one by one."""
    is_clocked: bool = False
    """It shows more than what is published, so it is made anew every second."""
    is_partial: bool = False
    """It lacks what could not be had in time, so a client that follows it is sent all parts at once."""
    status: int = 200


PageFunction = Callable[[Request], Awaitable[View]]
Form = Mapping[str, Sequence[str]]
"""The values of each field."""
FormFunction = Callable[[Request, Form], Awaitable["View | str"]]
"""Makes a change; returns a page that says what became of it, or the address below the site's root to go to."""


class Site:
    """The pages of one ops API. A subclass adds pages of its own to the frame."""

    home = "/"
    """The address of the name in the navigation, below the root."""
    notice_template = "notice.html"
    templates_of: tuple[str, ...] = (_PACKAGE,)
    """Packages with a folder `templates`; the first that has a template of a name is taken."""

    def __init__(self, ops: Ops, nav: Sequence[NavEntry], *, api: str = "/v1") -> None:
        """`api`: the path of the ops API below the root of the app that has the pages."""
        self.ops = ops
        self.nav = nav
        self._api = api
        self.templates: Environment = _environment(self.templates_of)
        self.shared: KeptResults[Any] = KeptResults(TICK_S)
        """What is shown alike to all users who see everything, by a key of its page: made once a second for all."""

    # -- what a subclass may say otherwise -----------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Of the publication that all pages show now; UNKNOWN: they show the process as it is."""
        return UNKNOWN

    def root(self, request: Request) -> str:
        """The path below which the pages are, without a slash at its end, as part of an address."""
        path = request.scope.get("root_path", "").strip("/")
        return quote(f"/{path}") if path else ""

    def api(self, request: Request) -> str:
        """The address of the ops API."""
        return self.root(request) + self._api

    async def sight(self, request: Request) -> Sight:
        """What the user of the request sees of entities, as in the ops API."""
        return await self.ops.sight(request)

    def link(self, entity: str) -> str | None:
        """The address of the page about what an entity is, if there is another one than `/entity/{id}`."""
        return None

    def facts(self) -> Sequence[tuple[str, str]]:
        """Names and texts that the page of the process shows besides its own."""
        return ()

    def explained(self, request: Request, error: Exception) -> Refusal:
        """The error as an answer, whatever it is."""
        return endpoints.explained(request, error)

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def age_ms(self) -> int:
        """How old the state is that the pages show."""
        return 0

    async def values(self, request: Request) -> dict[str, Any]:
        """What every template may use."""
        found = health.ready(waits_for_checks=False)
        principal = request.scope.get("principal")
        return {
            "site": self.ops.name,
            "root": self.root(request),
            "home": self.home,
            "api": self.api(request),
            "nav": self.nav,
            "notice_template": self.notice_template,
            "now_ms": self.now_ms(),
            "age_ms": self.age_ms(),
            "user": principal.name if isinstance(principal, Principal) else "",
            "health": found,
            "is_on": found.is_ok,
            "status": "ready" if found.is_ok else "not ready",
            "version": asset_version,
            "may_change": await self.may_change(request),
        }

    # -- changes -------------------------------------------------------------------------------------------------------

    async def may_change(self, request: Request) -> bool:
        """Whether the user of the request is shown buttons: controls are on, and it is an administrator who may see
        everything."""
        if self.ops.config.control and _is_admin(request):
            with suppress(Exception):  # of a foreign hook, which the page has asked as well: it says so without buttons
                return (await self.sight(request)).is_whole
        return False

    def form(self, function: FormFunction) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of a form of these pages: for administrators, where controls are on. It has its audit line.

        `function` names its operation and target by `describe_write`.
        """

        async def change(request: Request) -> Response:
            self.check_control(request)
            # A web host has looked at this already; another server has not.
            if not is_own_page(request.scope["headers"], request.scope["scheme"]):
                raise Refusal(403, "neither Origin nor Sec-Fetch-Site says that a page of this address sent the form")
            found = await function(request, form_of(await request.body()))
            if isinstance(found, str):
                return RedirectResponse(self.root(request) + found, 303, _HEADERS)
            return await self.render(request, found, self.number)

        return audited(guarded(change, self._problem, self.explained))

    def check_control(self, request: Request) -> None:
        """Raises Refusal (403): the user of the request may not change anything."""
        if not self.ops.config.control:
            raise Refusal(403, "controls are switched off; set ops.control: true")
        if not _is_admin(request):
            raise Refusal(403, "role admin is required")

    # -- pages ---------------------------------------------------------------------------------------------------------

    def get(self, path: str, function: Callable[[Site, Request], Awaitable[View]]) -> Route:
        """The route of a page."""
        return Route(path, self.page(partial(function, self)), methods=["GET"])

    def page(self, function: PageFunction) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of a page."""

        async def answer(request: Request) -> Response:
            if is_stream(request):
                return event_stream(stream_source(request, self.ops.stopping), self._follow(request, function))
            return await self.respond(request, function)

        return answer

    async def respond(self, request: Request, function: PageFunction) -> Response:
        """The page, or the error page."""
        # Of the publication from which the page is made, or of an earlier one: what comes meanwhile is sent afterwards.
        number = self.number

        async def page(request: Request) -> Response:
            return await self.render(request, await function(request), number)

        return await guarded(page, self._problem, self.explained)(request)

    async def _problem(self, request: Request, refusal: Refusal) -> Response:
        view = problem_view(refusal.status, refusal.reason)
        return await self.render(request, view, self.number, refusal.headers)

    async def render(
        self, request: Request, view: View, number: int, headers: Mapping[str, str] | None = None
    ) -> Response:
        values = {**await self._values(view, request), "number": UNKNOWN if view.is_partial else number}
        template = self.templates.get_template(view.template)
        await asyncio.sleep(0)
        pieces, size = [], 0
        for piece in template.generate(values):
            pieces.append(piece)
            size += len(piece)
            if size > 60_000:  # about 2 ms
                size = 0
                await asyncio.sleep(0)
        text = "".join(pieces)
        await asyncio.sleep(0)
        return text_answer(request, text, view.status, "text/html; charset=utf-8", headers)

    async def _values(self, view: View, request: Request) -> dict[str, Any]:
        return {**await self.values(request), "view": view, **view.values}

    # -- live ----------------------------------------------------------------------------------------------------------

    async def _follow(self, request: Request, function: PageFunction) -> AsyncIterator[bytes]:
        """What changes on the page, once a second at most."""
        known = request.query_params.get("live", "")
        follower = _Follower(self, request, function, int(known) if _NUMBER.fullmatch(known) else UNKNOWN)
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        while True:
            begun_s = loop.time()
            changes = await follower.changes(begun_s)
            if changes is None:  # no sign of life either: what the client shows is not the present
                sent_s = begun_s
            elif changes or begun_s - sent_s >= SIGN_OF_LIFE_S:
                sent_s = begun_s
                now_ms = self.now_ms()
                yield event_bytes("page", {**changes, "now": now_ms, "as_of": now_ms - self.age_ms()})
            await asyncio.sleep(max(0.1, TICK_S - (loop.time() - begun_s)))

    async def parts(self, request: Request, function: PageFunction) -> tuple[View, dict[str, str]]:
        """The page's live parts by the ids of their elements."""
        view = await function(request)
        template, values = self.templates.get_template(view.template), await self._values(view, request)
        found = {}
        for name in view.parts:
            found[f"part-{name}"] = _block(template, name, values)
            await asyncio.sleep(0)
        return view, found

    async def notice(self, request: Request, section: str) -> str:
        view = View(_BASE, "", section=section)
        return _block(self.templates.get_template(_BASE), _NOTICE, await self._values(view, request))


class _Follower:
    """What one client has been sent of one page."""

    def __init__(self, site: Site, request: Request, function: PageFunction, number: int) -> None:
        self._site = site
        self._request = request
        self._function = function
        self._number = number  # of the publication that the client has
        self._is_first = True
        self._is_clocked = False
        self._is_partial = False
        self._section = ""
        self._made_s = 0.0
        self._sent: dict[str, int] = {}  # checksums of the parts that the client has, by id
        self._rows: dict[str, int] = {}  # the same for rows, by key

    async def changes(self, now_s: float) -> dict[str, Any] | None:
        """What the client lacks; None: it cannot be had now."""
        number = self._site.number
        changes: dict[str, Any] = {}
        parts: dict[str, str] = {}
        is_known = self._is_first and number == self._number != UNKNOWN
        is_quiet = number == self._number and not self._is_clocked and now_s - self._made_s < QUIET_S
        if not is_quiet or self._is_first:
            try:
                view, parts = await self._site.parts(self._request, self._function)
            except (Refusal, DispatcherError) as error:
                if isinstance(error, Refusal) and error.status in _BUSY:
                    return None
                return {"gone": True}  # the page, when it is loaded again, says why
            self._is_clocked, self._is_partial, self._section = view.is_clocked, view.is_partial, view.section
            self._made_s = now_s
            if view.rows is not None:
                changes.update(self._row_changes(view.rows, is_known=is_known))
        parts[f"part-{_NOTICE}"] = await self._site.notice(self._request, self._section)
        changed = {id: text for id, text in parts.items() if self._is_new(id, text)}
        if is_known:  # the page is as it was when the client got it, but for what is not published
            changed = {id: text for id, text in changed.items() if id == f"part-{_NOTICE}"}
        if changed:
            changes["parts"] = changed
        self._number, self._is_first = number, False
        shown = UNKNOWN if self._is_partial else number
        return {**changes, "number": shown} if changes else {}

    def _is_new(self, id: str, text: str) -> bool:
        checksum = zlib.crc32(text.encode("utf-8", "replace"))
        is_new = self._sent.get(id) != checksum
        self._sent[id] = checksum
        return is_new

    def _row_changes(self, rows: Mapping[str, Markup], *, is_known: bool) -> dict[str, Any]:
        before, after = self._rows, {key: hash(row) for key, row in rows.items()}
        self._rows = after
        if is_known or (before == after and list(before) == list(after)):
            return {}
        changed = {key: rows[key] for key, checksum in after.items() if before.get(key) != checksum}
        return {"rows": {"order": list(after), "html": changed}}


def is_stream(request: Request) -> bool:
    """Whether a script asks for what changes on the page, and not for the page."""
    return takes(request.headers.getlist("accept"), "text/event-stream")


def problem_view(status: int, text: str) -> View:
    titles = {400: "This cannot be asked", 403: "Not allowed", 404: "Not found", 409: "Not possible"}
    title = titles.get(status, "Not available now" if status == 503 else "Something went wrong")
    return View("problem.html", title, {"text": one_line(text)}, status=status)


def _is_admin(request: Request) -> bool:
    principal = request.scope.get("principal")
    return isinstance(principal, Principal) and principal.may("admin")


# -- forms -------------------------------------------------------------------------------------------------------------


def form_of(body: bytes) -> Form:
    """The fields of a form. Raises Refusal (400): no page sends such a form."""
    try:
        return parse_qs(body.decode("utf-8", "replace"), max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Refusal(400, f"a form has at most {_MOST_FIELDS} fields") from None


def takes_form(routes: Iterable[BaseRoute]) -> Callable[[str], bool]:
    """Whether a POST to a path is a form of these pages: for a WebHost."""
    forms = list(_forms(routes, ""))
    return lambda path: any(path.startswith(prefix) and form.match(path[len(prefix) :]) for prefix, form in forms)


def _forms(routes: Iterable[BaseRoute], prefix: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    for each in routes:
        if isinstance(each, Mount):
            yield from _forms(each.routes, prefix + each.path)
        elif isinstance(each, Route) and "POST" in (each.methods or ()):
            yield prefix, each.path_regex


# -- answers -----------------------------------------------------------------------------------------------------------


def text_answer(
    request: Request, text: str, status: int, content_type: str, headers: Mapping[str, str] | None = None
) -> Response:
    """The text as an answer, with gzip where the client takes it."""
    given = {name.lower(): value for name, value in (headers or {}).items()}
    all_headers = {**_HEADERS, "content-type": content_type, "vary": "Accept", **given}
    return zipped(request, Response(text.encode("utf-8", "backslashreplace"), status, all_headers), _ZIP_LEVEL)


async def static_file(request: Request) -> Response:
    """The style sheet or the script. Their addresses have a version, so that browsers keep them."""
    found = _asset(request.path_params["name"])
    if found is None:
        return Response("not found\n", 404, media_type="text/plain")
    text, content_type = found
    is_versioned = request.query_params.get("v") == asset_version(request.path_params["name"])
    keep = {"Cache-Control": "public, max-age=31536000, immutable"} if is_versioned else {}
    return text_answer(request, text, 200, content_type, keep)


@cache
def _asset(name: str) -> tuple[str, str] | None:
    if name not in _STATIC:
        return None
    return resources.files(_PACKAGE).joinpath("static", name).read_text(encoding="utf-8"), _STATIC[name]


@cache
def asset_version(name: str) -> str:
    found = _asset(name)
    assert found is not None
    return f"{zlib.crc32(found[0].encode()):08x}"


@cache
def _environment(packages: tuple[str, ...]) -> Environment:
    made = environment(ChoiceLoader([PackageLoader(each, "templates") for each in packages]))
    made.finalize = page_texts.clean
    made.trim_blocks = made.lstrip_blocks = True
    made.filters.update(page_texts.FILTERS)
    made.globals.update(page_texts.GLOBALS)
    return made


def _block(template: Template, name: str, values: Mapping[str, Any]) -> str:
    return "".join(template.blocks[name](template.new_context(dict(values)))).strip()
