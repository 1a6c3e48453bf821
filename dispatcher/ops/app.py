"""The ops API as a Starlette app, to be served by an `OpsDoor` or mounted into an app of the user.

Threads: the loop's thread runs the endpoints. None waits for a handler thread, and work that walks over a queue, a
journal, stacks or entities runs on a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from dispatcher.metrics.transition_ring import ring
from dispatcher.ops import dispatchers as of_dispatchers
from dispatcher.ops import entities, journals, stacks
from dispatcher.ops.config import OpsConfig
from dispatcher.ops.controls import LogLevels, log_level_request, redeliver_letters, redelivery_request, stop_daemon
from dispatcher.ops.dispatchers import find_dispatcher
from dispatcher.ops.process import process_name, process_numbers
from dispatcher.ops.sampler import Sampler, shared_sampler
from dispatcher.ops.stream import ops_events
from dispatcher.util.threads import NO_THREAD
from dispatcher.view import DispatcherView, dispatchers
from dispatcher.web.endpoints import answer, guarded, json_answer, router_error
from dispatcher.web.events import event_stream, stream_source
from dispatcher.web.plain_answers import SOON, Refusal
from dispatcher.web.queries import choice, limit_of, listed, number, page_of
from dispatcher.web.security import Principal, WriteNote, audit, describe_write, require
from dispatcher.web.waiting import Kept, Workers, in_pieces, without_thread

_MOST_SEQ: Final = 10**18
_STACK_KEPT_S: Final = 0.05
_MOST_BODY: Final = 10_000


class Ops:
    """What the endpoints of one app share. One loop's thread, but for `close`."""

    def __init__(self, config: OpsConfig, name: str, stopping: asyncio.Event) -> None:
        self.config = config
        self.name = name
        self.stopping = stopping
        """Ends the streams of an app that another server serves."""
        self.workers = Workers()
        self.scans = Workers(most=1)
        self.numbers = Kept(1.0)
        self.running = Kept(_STACK_KEPT_S)
        self.threads = Kept(1.0)
        self.log_levels = LogLevels()
        if config.transitions_kept > ring.most:
            ring.resize(config.transitions_kept)
        elif not config.transitions_kept:
            ring.resize(0)
        shared_sampler.use(self)

    @property
    def sampler(self) -> Sampler:
        return shared_sampler.use(self)  # after a fork, its thread has to be started anew

    async def dispatcher_numbers(self) -> list[dict[str, Any]]:
        sampler = self.sampler
        return [of_dispatchers.numbers(view, sampler) async for view in in_pieces(dispatchers())]

    async def stream_numbers(self) -> bytes:
        """All of /dispatchers as JSON, made once a second for all streams."""

        async def make() -> Any:
            items = await self.dispatcher_numbers()
            return listed(items, None, len(items))

        return await self.numbers.make("dispatchers", make)

    def close(self) -> None:
        """Restore the levels of loggers, and let the sampler end. Any thread."""
        self.log_levels.restore_all()
        shared_sampler.release(self)


samples = Kept(1.0)
"""Answers of `/running?samples=N`: one is made at a time in the whole process. Replaced in a forked child."""


def _after_fork() -> None:
    global samples
    samples = Kept(1.0)


os.register_at_fork(after_in_child=_after_fork)


def ops_app(
    config: OpsConfig | None = None, *, name: str | None = None, stopping: asyncio.Event | None = None
) -> Starlette:
    """The ops API below `/v1`: `app.mount("/ops", ops_app())` gives `/ops/v1/dispatchers` and the like.

    It shows every dispatcher of the process, later ones too. `name`: the daemon's, in /process. `stopping` ends open
    streams when it is set, on the loop; a WebHost ends them by itself.

    Whatever serves the app decides which clients reach it: a WebHost, or middleware of your own. `/threads` and
    the controls need a `Principal` of role admin in the request's scope.
    """
    return app_of(Ops(config or OpsConfig(), name or process_name(), stopping or asyncio.Event()))


def app_of(ops: Ops) -> Starlette:
    """The app around its shared part."""
    routes = [Route(path, guarded(partial(function, ops)), methods=["GET"]) for path, function in _GETS.items()]
    routes.append(Route("/threads", guarded(require("admin")(partial(_threads, ops))), methods=["GET"]))
    routes += [_control(ops, path, function) for path, function in _POSTS.items()]
    app = Starlette(routes=[Mount("/v1", routes=routes)], exception_handlers={HTTPException: router_error()})
    app.router.redirect_slashes = False
    app.state.ops = ops
    return app


Function = Callable[[Ops, Request], Awaitable[Response]]


# -- the process and its dispatchers -----------------------------------------------------------------------------------


async def _process(ops: Ops, request: Request) -> Response:
    return answer(await ops.workers.run(lambda: process_numbers(ops.name)))


async def _dispatchers(ops: Ops, request: Request) -> Response:
    return answer(page_of(request, await ops.dispatcher_numbers()))


async def _dispatcher(ops: Ops, request: Request) -> Response:
    return answer(of_dispatchers.numbers(_view(request), ops.sampler))


async def _types(ops: Ops, request: Request) -> Response:
    view, sampler = _view(request), ops.sampler
    sorts = request.query_params.get("sort", of_dispatchers.SORTS[0]).split(",")
    if not set(sorts) <= set(of_dispatchers.SORTS):
        raise Refusal(400, f"sort={','.join(sorts)}: not one of {', '.join(of_dispatchers.SORTS)}")
    return answer(page_of(request, await ops.workers.run(lambda: of_dispatchers.type_items(view, sampler, sorts))))


async def _queue(ops: Ops, request: Request) -> Response:
    view, limit = _view(request), limit_of(request)
    if choice(request, "by", ("type", "entity")) == "type":
        items, approximate = await ops.workers.run(lambda: of_dispatchers.queued_types(view))
        return answer(page_of(request, items, approximate=approximate))
    items, approximate = await ops.workers.run(lambda: of_dispatchers.queued_entities(view, limit))
    return answer(listed(items, None, None, approximate=approximate))


async def _running(ops: Ops, request: Request) -> Response:
    view = _view(request)
    count = number(request, "samples", None, 1, stacks.MOST_SAMPLES)
    if count is None:
        making = partial(ops.workers.run, partial(stacks.running_with_stack, view))
        return json_answer(await ops.running.make((view.name, id(view)), making))
    interval_ms = number(request, "interval_ms", min(10, stacks.MOST_MS // count), 1, stacks.MOST_MS)
    if count * interval_ms > stacks.MOST_MS:
        raise Refusal(400, f"samples={count} times interval_ms={interval_ms} is more than {stacks.MOST_MS} ms")
    key = view.name, id(view), count, interval_ms
    kept = samples.get(key)
    if kept is None and samples.is_making():
        raise Refusal(429, "another request takes samples", SOON)
    if kept is None:
        sampling = partial(stacks.sample_stacks, view, count, interval_ms)
        kept = await samples.make(key, lambda: ops.workers.run(sampling))
    return json_answer(kept)


async def _failures(ops: Ops, request: Request) -> Response:
    records, limit = _view(request).failures(), limit_of(request)
    before = number(request, "after", None, 0, _MOST_SEQ)
    older = [record for record in records if before is None or record.number < before]
    items = [of_dispatchers.failure_item(record) for record in older[:limit]]
    return answer(listed(items, str(items[-1]["number"]) if len(older) > limit else None, len(records)))


async def _threads(ops: Ops, request: Request) -> Response:
    async def make() -> Any:
        items = await ops.workers.run(stacks.thread_items)
        return listed(items, None, len(items))

    return json_answer(await ops.threads.make("threads", make))


def _view(request: Request) -> DispatcherView:
    return find_dispatcher(request.path_params["name"])


# -- machines and journals ---------------------------------------------------------------------------------------------


async def _machines(ops: Ops, request: Request) -> Response:
    return answer(page_of(request, await ops.workers.run(entities.machine_items)))


async def _machine_entities(ops: Ops, request: Request) -> Response:
    query, limit = request.query_params, limit_of(request)
    machine, state = request.path_params["machine"], query.get("state")
    prefix, after = query.get("prefix", ""), query.get("after", "")
    return answer(await ops.workers.run(lambda: entities.entity_page(machine, state, prefix, after, limit)))


async def _entity(ops: Ops, request: Request) -> Response:
    entity, machine = request.path_params["id"], request.query_params.get("machine")
    limit, before = limit_of(request), number(request, "after", None, 0, _MOST_SEQ)
    readers = entities.history_readers(dispatchers(), journals.Deadline())
    return answer(await ops.workers.run(lambda: entities.entity_answer(entity, machine, limit, before, readers)))


async def _journal_tail(ops: Ops, request: Request) -> Response:
    query, limit = request.query_params, limit_of(request)
    after_seq = number(request, "after_seq", None, 0, _MOST_SEQ)
    wanted = journals.Wanted(query.get("event_class"), query.get("event_type"), query.get("entity"))
    path = journals.journal_of(dispatchers(), query.get("dispatcher"))
    read = partial(journals.tail_rows, path, limit, wanted, after_seq, payloads=ops.config.show_payloads)
    rows = await ops.workers.run(lambda: read(journals.Deadline()))
    return answer(listed(rows, str(rows[-1]["seq"]) if rows else None, None))


async def _journal_state(ops: Ops, request: Request) -> Response:
    moment = journals.parse_moment(request.query_params.get("at"))
    path = journals.journal_of(dispatchers(), request.query_params.get("dispatcher"))
    return answer(await ops.scans.run(lambda: journals.states_at(path, moment, journals.Deadline())))


# -- the stream --------------------------------------------------------------------------------------------------------


async def _stream(ops: Ops, request: Request) -> Response:
    return event_stream(stream_source(request, ops.stopping), ops_events(dispatchers, ops.stream_numbers))


# -- controls ----------------------------------------------------------------------------------------------------------


async def _content(request: Request) -> Any:
    """The body's JSON; None: it is too long, or no JSON."""
    body = await request.body()
    try:
        return json.loads(body) if len(body) <= _MOST_BODY else None
    except (ValueError, RecursionError):
        return None


async def _log_level(ops: Ops, request: Request) -> Response:
    name, level, for_s = log_level_request(await _content(request))
    describe_write(request.scope, operation=f"log level {level} for {for_s:g} s", target=name or "root")
    try:
        return answer(ops.log_levels.change(name, level, for_s))
    except NO_THREAD as error:
        raise without_thread(error) from None


async def _redeliver(ops: Ops, request: Request) -> Response:
    view = _view(request)
    numbers, journal_id = redelivery_request(await _content(request))
    describe_write(request.scope, operation=f"redeliver {len(numbers)} dead letters", target=view.name)
    return answer(await ops.scans.run(lambda: redeliver_letters(view, numbers, journal_id)))


async def _stop(ops: Ops, request: Request) -> Response:
    describe_write(request.scope, operation="stop", target=ops.name)
    try:
        return answer({"stopping": True, "by": stop_daemon()}, 202)
    except NO_THREAD as error:
        raise without_thread(error) from None


def _control(ops: Ops, path: str, function: Function) -> Route:
    """A route of role admin, only with `ops.control`; audited here where no WebHost does it."""

    @require("admin")
    async def allowed(request: Request) -> Response:
        if not ops.config.control:
            raise Refusal(403, "controls are switched off; set ops.control: true")
        return await function(ops, request)

    answering = guarded(allowed)

    async def audited(request: Request) -> Response:
        is_ours = "audit" not in request.scope
        note = request.scope.setdefault("audit", WriteNote(request.method, request.url.path))
        response = await answering(request)
        if is_ours:
            principal = request.scope.get("principal")
            user = principal.name if isinstance(principal, Principal) else "-"
            audit(user, request.client.host if request.client else "-", note, response.status_code)
        return response

    return Route(path, audited, methods=["POST"])


_GETS: Final[dict[str, Function]] = {
    "/process": _process,
    "/dispatchers": _dispatchers,
    "/dispatchers/{name:path}/types": _types,
    "/dispatchers/{name:path}/queue": _queue,
    "/dispatchers/{name:path}/running": _running,
    "/dispatchers/{name:path}/failures": _failures,
    "/dispatchers/{name:path}": _dispatcher,
    "/machines": _machines,
    "/machines/{machine:path}/entities": _machine_entities,
    "/entities/{id:path}": _entity,
    "/journal/tail": _journal_tail,
    "/journal/state": _journal_state,
    "/stream": _stream,
}
_POSTS: Final[dict[str, Function]] = {
    "/log-level": _log_level,
    "/dispatchers/{name:path}/redeliver": _redeliver,
    "/stop": _stop,
}
