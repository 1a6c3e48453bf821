"""PUT /apps/{app}/state, /queue, /priority and /timeout: applications are killed, moved and changed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.read.fields import ENDED
from statemachines.resourcemanager.records.acls import Caller
from statemachines.resourcemanager.records.errors import AccessDeniedError
from statemachines.resourcemanager.reports import APPLICATION_STATES, ApplicationReport
from statemachines.resourcemanager.web.rest.apps import app_of
from statemachines.resourcemanager.web.rest.rest_endpoints import MOST_INT, answer
from statemachines.resourcemanager.web.rest.texts import timeout_info
from statemachines.resourcemanager.web.rest.writing.bodies import Fields
from statemachines.resourcemanager.web.rest.writing.common import (
    address_of,
    changing,
    fields_of,
    known_app,
)
from statemachines.resourcemanager.web.shared import RMWeb, WriteDeadline

KILL_WAIT_S: Final = 0.1
"""How long a kill's answer waits for the end."""
_LOOKS_S: Final = (0.005, 0.01, 0.02, 0.04)
"""Between two looks at an application that is being killed; the last one again and again."""
_LIFETIME: Final = "LIFETIME"
_UNLIMITED: Final = "UNLIMITED"
_AGAIN: Final = "it may still be done: send it again"
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?)(Z|[+-]\d\d:?\d\d)", re.ASCII)


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    async def set_state(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        body = await fields_of(request)
        target, diagnostics = body.text("state"), body.text("diagnostics", "")
        app = await known_app(rm, request, deadline)
        if target not in (app.state, "KILLED"):
            known = f" ({target} is no state)" if target not in APPLICATION_STATES else ""
            raise Refusal(400, f"Only 'KILLED' is allowed as a target state{known}; the application is {app.state}")
        if target == app.state:
            return answer({"state": app.state})
        state = await _kill(rm, app, caller, _told(request, diagnostics))
        if state in ENDED:
            return answer({"state": state})
        return answer({"state": state}, 202, {"Location": address_of(request, f"/apps/{app.application_id}/state")})

    async def set_queue(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        queue = (await fields_of(request)).text("queue")
        app = await known_app(rm, request, deadline)
        if queue != app.queue:
            moved = rm.clients.move_application_across_queues_later(app.application_id, queue, caller=caller)
            await deadline.result(moved, _AGAIN)
            await deadline.published()
        return answer({"queue": _later(rm, app).queue})

    async def set_priority(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        priority = (await fields_of(request)).number("priority", None, -MOST_INT, MOST_INT)
        app = await known_app(rm, request, deadline)
        if priority != app.priority:
            changed = rm.clients.update_application_priority_later(app.application_id, priority, caller=caller)
            priority = await deadline.result(changed, _AGAIN)
            await deadline.published()
        return answer({"priority": priority})

    async def set_timeout(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        expiry_ms = _expiry_ms(await fields_of(request))
        app = await known_app(rm, request, deadline)
        lifetime_s = None if expiry_ms is None else -((app.submit_ms - expiry_ms) // 1000)
        if lifetime_s is not None and lifetime_s < 1:
            raise Refusal(400, "timeout.expiryTime: is before the application was submitted; to end it, kill it")
        changed = rm.clients.update_application_timeouts_later(app.application_id, lifetime_s, caller=caller)
        ends_ms = await deadline.result(changed, _AGAIN)
        await deadline.published()
        return answer({"timeout": timeout_info(ends_ms, rm.model.now_ms())})

    return [
        changing(rm, "/apps/{app}/state", ["PUT"], "Kill Application Request", set_state),
        changing(rm, "/apps/{app}/queue", ["PUT"], "Move Application Request", set_queue),
        changing(rm, "/apps/{app}/priority", ["PUT"], "Update Application Priority", set_priority),
        changing(rm, "/apps/{app}/timeout", ["PUT"], "Update Application Timeouts", set_timeout),
    ]


# -- kill --------------------------------------------------------------------------------------------------------------


async def _kill(rm: RMWeb, app: ApplicationReport, caller: Caller, diagnostics: str) -> str:
    """Have it killed; returns its state, after KILL_WAIT_S at the latest. The kill itself is not given up then.

    Raises:
        AccessDeniedError, NotFoundError: as of the last publication, or by the handler thread.
    """
    if not rm.clients.acls.may_modify(app, caller):  # the handler thread may be too busy to say so
        raise AccessDeniedError(
            caller.user, f"User {caller.user} cannot perform operation MODIFY_APP on {app.application_id}"
        )
    loop, app_id = asyncio.get_running_loop(), app.application_id
    until_s = loop.time() + KILL_WAIT_S
    begun = asyncio.wrap_future(rm.clients.force_kill_application_later(app_id, diagnostics, caller=caller))
    begun.add_done_callback(_seen)
    await asyncio.wait({begun}, timeout=KILL_WAIT_S)
    if not begun.done():
        return app.state
    begun.result()
    await _until(rm, lambda: app_of(rm, app_id).state in ENDED, until_s)
    return _later(rm, app).state


async def _until(rm: RMWeb, is_so: Callable[[], bool], until_s: float) -> None:
    """Look at the model again and again, until that is so or the time is over."""
    loop, looks = asyncio.get_running_loop(), iter(_LOOKS_S)
    while True:
        try:
            await rm.model.published(max(0.0, until_s - loop.time()))
        except TimeoutError:
            return
        pause_s = next(looks, _LOOKS_S[-1])
        if is_so() or loop.time() + pause_s >= until_s:
            return
        await asyncio.sleep(pause_s)


def _seen(future: asyncio.Future[Any]) -> None:
    """Nobody waits any longer: its error was for the client, which has got its answer."""
    if not future.cancelled():
        future.exception()


def _told(request: Request, diagnostics: str) -> str:
    """From where it was killed and why, for the application's diagnostics, which name the user by themselves."""
    host = request.client.host if request.client is not None else ""
    return ": ".join(filter(None, (f"REST client at {host}" if host else "", diagnostics)))


def _later(rm: RMWeb, app: ApplicationReport) -> ApplicationReport:
    """The application now; as it was if it has been forgotten meanwhile."""
    return rm.model.apps.get(app.application_id, app)


# -- lifetime ----------------------------------------------------------------------------------------------------------


def _expiry_ms(body: Fields) -> int | None:
    """When the application shall end, Unix ms; None: when its queue says so. Raises Refusal (400)."""
    timeout = body.fields("timeout") if body.has("timeout") else body
    kind = timeout.text("type")
    if kind != _LIFETIME:
        raise Refusal(400, f"{timeout.where('type')}: expected {_LIFETIME}, the only timeout of applications")
    text, where = timeout.text("expiryTime").strip(), timeout.where("expiryTime")
    if text == _UNLIMITED:
        return None
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        return round(datetime.fromisoformat("".join(match.groups())).timestamp() * 1000)
    except (ValueError, OverflowError):
        expected = "expected a time in ISO 8601 with its zone, such as 2026-12-31T23:59:59.000+0000"
        raise Refusal(400, f"{where}: is not a time; {expected}, or {_UNLIMITED}") from None
