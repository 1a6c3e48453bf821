"""What all pages share: templates, the notice of a handler that hangs, users, compression, errors, and live updates.

A page is a function from a request to a `View`. Its address answers with the whole page as HTML; a script that asks the
same address for events gets, once a second, those parts and rows of it that have changed.

Threads: the loop's thread.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Final

from jinja2 import Environment, PackageLoader, Template
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from dispatcher.errors import DispatcherError
from dispatcher.util.http_heads import takes
from dispatcher.util.terminal import one_line
from dispatcher.web import endpoints
from dispatcher.web.endpoints import guarded, zipped
from dispatcher.web.events import event_bytes, event_stream, stream_source
from dispatcher.web.pages import environment
from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.read.model import ReadModel
from statemachines.resourcemanager.web.pages import page_texts
from statemachines.resourcemanager.web.pages.access import Viewer, viewer_of
from statemachines.resourcemanager.web.shared import RMWeb, known_refusal
from statemachines.resourcemanager.web.users import UserError

TICK_S: Final = 1.0
QUIET_S: Final = 2.0
"""How often a page is made anew while nothing is published: what its applications wait for may change all the same."""
_UNKNOWN: Final = -1
"""In place of the number of the publication that a page shows: the page lacks something that has come since."""
_BASE: Final = "base.html"
_NOTICE: Final = "notice"
_ZIP_LEVEL: Final = 4
_STATIC: Final = {
    "style.css": ("statemachines.drawing", "style.css", "text/css; charset=utf-8"),
    "live.js": ("statemachines.resourcemanager.web.pages", "static/live.js", "text/javascript; charset=utf-8"),
}


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
    """It shows more than the model, so it is made anew every second."""
    is_partial: bool = False
    """It lacks what could not be had in time, so a client that follows it is sent all parts at once."""
    status: int = 200


PageFunction = Callable[[Request], Awaitable[View]]


class Site:
    """The pages of one resource manager."""

    def __init__(self, rm: RMWeb, *, is_ops_enabled: bool = True) -> None:
        self.rm = rm
        self.is_ops_enabled = is_ops_enabled
        self.templates = _environment()
        self._stopping = asyncio.Event()  # of an app without a WebHost; never set

    @property
    def model(self) -> ReadModel:
        return self.rm.model

    async def viewer(self, request: Request) -> Viewer:
        """The user of the request. Raises UserError: `user.name` is not a user's name (400)."""
        return await viewer_of(self.rm, request)

    def page(self, function: PageFunction) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of a page."""

        async def answer(request: Request) -> Response:
            if takes(request.headers.getlist("accept"), "text/event-stream"):
                return event_stream(stream_source(request, self._stopping), self._follow(request, function))
            return await self.respond(request, function)

        return answer

    async def respond(self, request: Request, function: PageFunction) -> Response:
        """The page, or the error page."""
        # Of the publication from which the page is made, or of an earlier one: what comes meanwhile is sent afterwards.
        number = self.model.number

        async def page(request: Request) -> Response:
            return await self.render(request, await function(request), number)

        async def problem(request: Request, refusal: Refusal) -> Response:
            view = problem_view(refusal.status, refusal.reason)
            return await self.render(request, view, number, refusal.headers)

        return await guarded(page, problem, explained)(request)

    async def render(
        self, request: Request, view: View, number: int, headers: Mapping[str, str] | None = None
    ) -> Response:
        values = {**self._values(view, await self._user(request)), "number": _UNKNOWN if view.is_partial else number}
        values["has_session"] = request.scope.get("has_session", False)
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

    async def _user(self, request: Request) -> str:
        try:
            return (await self.viewer(request)).name
        except UserError:
            return "nobody"

    def _values(self, view: View, user: str) -> dict[str, Any]:
        return {
            "view": view,
            "rm": self.rm.name,
            "now_ms": self.model.now_ms(),
            "user": user,
            "hang": self.model.hang(),
            "age_ms": self.model.age_ms(),
            "is_active": self.model.is_active(),
            "version": asset_version,
            "is_read_only": self.rm.config.read_only,
            **view.values,
        }

    # -- live ----------------------------------------------------------------------------------------------------------

    async def _follow(self, request: Request, function: PageFunction) -> AsyncIterator[bytes]:
        """What changes on the page, once a second at most."""
        known = request.query_params.get("live", "")
        follower = _Follower(self, request, function, int(known) if known.isascii() and known.isdigit() else _UNKNOWN)
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            changes = await follower.changes(begun_s)
            if changes:
                yield event_bytes("page", changes)
            await asyncio.sleep(max(0.1, TICK_S - (loop.time() - begun_s)))

    async def parts(self, request: Request, function: PageFunction) -> tuple[View, dict[str, str]]:
        """The page's live parts by the ids of their elements."""
        view = await function(request)
        template, values = self.templates.get_template(view.template), self._values(view, "")
        found = {}
        for name in view.parts:
            found[f"part-{name}"] = _block(template, name, values)
            await asyncio.sleep(0)
        return view, found

    def notice(self) -> str:
        return _block(self.templates.get_template(_BASE), _NOTICE, self._values(View(_BASE, ""), ""))


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
        self._made_s = 0.0
        self._sent: dict[str, int] = {}  # checksums of the parts that the client has, by id
        self._rows: dict[str, int] = {}  # the same for rows, by key

    async def changes(self, now_s: float) -> dict[str, Any]:
        number = self._site.model.number
        changes: dict[str, Any] = {}
        parts = {f"part-{_NOTICE}": self._site.notice()}
        is_quiet = number == self._number and not self._is_clocked and now_s - self._made_s < QUIET_S
        if not is_quiet or self._is_first:
            try:
                view, made = await self._site.parts(self._request, self._function)
            except (Refusal, DispatcherError):
                return {"gone": True}  # the page, when it is loaded again, says why
            parts.update(made)
            self._is_clocked, self._is_partial = view.is_clocked, view.is_partial
            self._made_s = now_s
            if view.rows is not None:
                changes.update(self._row_changes(view.rows, is_known=self._is_first and number == self._number))
        is_known = self._is_first and number == self._number
        changed = {id: text for id, text in parts.items() if self._is_new(id, text)}
        if is_known:  # the page is as it was when the client got it, but for what is not of the model
            changed = {id: text for id, text in changed.items() if id == f"part-{_NOTICE}"}
        if changed:
            changes["parts"] = changed
        self._number, self._is_first = number, False
        shown = _UNKNOWN if self._is_partial else number
        return {**changes, "number": shown, "now": self._site.model.now_ms()} if changes else {}

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


def problem_view(status: int, text: str) -> View:
    titles = {400: "This cannot be asked", 403: "Not allowed", 404: "Not found", 409: "Not possible"}
    title = titles.get(status, "Not available now" if status == 503 else "Something went wrong")
    return View("problem.html", title, {"text": one_line(text)}, status=status)


def explained(request: Request, error: Exception) -> Refusal:
    """The error as an answer, whatever it is."""
    return known_refusal(error) or endpoints.explained(request, error)


def text_answer(
    request: Request, text: str, status: int, content_type: str, headers: Mapping[str, str] | None = None
) -> Response:
    """The text as an answer, with gzip where the client takes it."""
    all_headers = {"Content-Type": content_type, "Vary": "Accept-Encoding, Accept", **(headers or {})}
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
    package, path, content_type = _STATIC[name]
    return resources.files(package).joinpath(path).read_text(encoding="utf-8"), content_type


def style_sheet() -> str:
    """The text of the style sheet."""
    found = _asset("style.css")
    assert found is not None
    return found[0]


@cache
def asset_version(name: str) -> str:
    found = _asset(name)
    assert found is not None
    return f"{zlib.crc32(found[0].encode()):08x}"


@cache
def _environment() -> Environment:
    made = environment(PackageLoader("statemachines.resourcemanager.web.pages", "templates"))
    made.finalize = page_texts.clean
    made.trim_blocks = made.lstrip_blocks = True
    made.filters.update(page_texts.FILTERS)
    made.globals.update(page_texts.GLOBALS)
    return made


def _block(template: Template, name: str, values: Mapping[str, Any]) -> str:
    return "".join(template.blocks[name](template.new_context(dict(values)))).strip()
