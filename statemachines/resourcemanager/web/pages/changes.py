"""Buttons of the pages: a form with a question, whose POST makes the change. They work without JavaScript.

They call what the REST API calls, as the same user and with the same deadline; each has its line in the audit log.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from dispatcher.errors import DispatcherError
from dispatcher.pages.site import View
from dispatcher.web.plain_answers import SOON, Refusal
from dispatcher.web.security import describe_write
from statemachines.resourcemanager.records.acls import Caller
from statemachines.resourcemanager.web.pages import application, nodes
from statemachines.resourcemanager.web.pages.access import Viewer
from statemachines.resourcemanager.web.pages.site import ClusterSite
from statemachines.resourcemanager.web.shared import WriteDeadline, known_refusal

_SEEN_S: Final = 2.0
_MOST_FIELDS: Final = 20
_MOST_PRIORITY: Final = 2**31 - 1
Form = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Button:
    """One button."""

    name: str
    """Last part of its address."""
    title: str
    question: str
    button: str
    operation: str
    """In the audit log: YARN's name for it."""
    is_of_app: bool
    is_dangerous: bool = False
    field: str | None = None
    """The form's input: `queue` or `priority`."""


CHANGES: Final = (
    Button(
        "kill",
        "Kill",
        "Kill this application? Its containers end at once.",
        "Kill it",
        "Kill Application Request",
        True,
        True,
    ),
    Button(
        "move",
        "Move",
        "Move this application, with its containers and requests, to another queue.",
        "Move it",
        "Move Application Request",
        True,
        field="queue",
    ),
    Button(
        "priority",
        "Priority",
        "Applications of higher priority are served first in their queue.",
        "Set it",
        "Update Application Priority",
        True,
        field="priority",
    ),
    Button(
        "drain",
        "Decommission gracefully",
        "The node takes no more containers, and leaves once its applications have ended.",
        "Decommission gracefully",
        "refreshNodes graceful",
        False,
    ),
    Button(
        "decommission",
        "Decommission at once",
        "The node leaves now. Its containers end, and may be started elsewhere.",
        "Decommission at once",
        "refreshNodes",
        False,
        True,
    ),
    Button(
        "recommission",
        "Recommission",
        "The node may be used again. If it has left, it must register again.",
        "Recommission it",
        "recommission",
        False,
    ),
)


def routes(site: ClusterSite) -> Sequence[BaseRoute]:
    found: list[BaseRoute] = []
    for change in CHANGES:
        base = application.APP if change.is_of_app else nodes.NODE
        path = f"{base}/{{id}}/{change.name}"
        found.append(Route(path, site.page(partial(_form_view, site, change)), methods=["GET"]))
        found.append(Route(path, _answer(site, change), methods=["POST"]))
    return found


async def _form_view(site: ClusterSite, change: Button, request: Request, problem: str = "", status: int = 200) -> View:
    about, _ = await _about(site, change, request)
    values = {**about, "change": change, "problem": problem, "action": _with_user(request, request.url.path)}
    values["queues"] = [queue.path for queue in site.model.queues if queue.is_leaf]
    section = "apps" if change.is_of_app else "nodes"
    return View("change.html", f"{change.title}: {about['name']}", values, section, status=status)


async def _about(site: ClusterSite, change: Button, request: Request) -> tuple[dict[str, Any], Caller]:
    """What is changed, and on whose behalf.

    Raises Refusal: there is no such thing (404), or the user may not change it (401, 403).
    """
    if site.rm.config.read_only:
        raise Refusal(403, "web.read_only is set: nothing can be changed here")
    caller = await site.rm.users.writer(request)
    viewer = Viewer(site.rm.clients.acls, caller, caller)
    if change.is_of_app:
        app = application.find(site, request)
        if not viewer.may_change(app):
            raise Refusal(403, f"user {caller.user} may not change {app.application_id}")
        back = f"{application.APP}/{app.application_id}"
        about = {"id": app.application_id, "name": app.name, "queue": app.queue, "priority": app.priority, "back": back}
        return about, caller
    node = nodes.find(site, request)
    if not viewer.may_administer():
        raise Refusal(403, f"user {caller.user} is not an administrator")
    # The placeholder of a host without a node goes once the host is recommissioned.
    is_placeholder = node.node_id == f"{node.host}:-1"
    back = nodes.NODES if is_placeholder else f"{nodes.NODE}/{quote(node.node_id)}"
    return {"id": node.node_id, "name": node.node_id, "host": node.host, "back": back}, caller


def _answer(site: ClusterSite, change: Button) -> Callable[[Request], Awaitable[Response]]:
    async def make(request: Request) -> Response:
        describe_write(request.scope, operation=change.operation, target=request.path_params["id"])
        body = await request.body()
        try:
            form = _form_of(body)
            about, caller = await _about(site, change, request)
            deadline = WriteDeadline(site.rm)
            await deadline.result(_done(site, change, about, form, caller), "the change may still be made")
            await deadline.published(_SEEN_S)
        except (Refusal, DispatcherError) as error:
            refusal = known_refusal(error) or Refusal(503, str(error), SOON)
            return await _refused(site, change, request, refusal)
        return RedirectResponse(_with_user(request, about["back"]), 303)

    return make


def _form_of(body: bytes) -> Form:
    """Raises Refusal (400): no page sends such a form."""
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Refusal(400, f"a form has at most {_MOST_FIELDS} fields") from None
    return {name: values[0] for name, values in fields.items()}


def _done(site: ClusterSite, change: Button, about: Mapping[str, Any], form: Form, caller: Caller) -> Future[Any]:
    """Ask the services for the change; the future is done once it is made."""
    clients, admin, id = site.rm.clients, site.rm.admin, about["id"]
    if change.name == "kill":
        return clients.force_kill_application_later(id, "from its page", caller=caller)
    if change.name == "move":
        return clients.move_application_across_queues_later(id, form.get("queue", ""), caller=caller)
    if change.name == "priority":
        return clients.update_application_priority_later(id, _priority(form.get("priority", "")), caller=caller)
    if change.name == "recommission":
        return admin.recommission_later([about["host"]], caller=caller)
    return admin.refresh_nodes_later([about["host"]], graceful=change.name == "drain", caller=caller)


def _priority(text: str) -> int:
    plain = text.strip()
    if not re.fullmatch(r"[0-9]{1,10}", plain) or int(plain) > _MOST_PRIORITY:
        raise Refusal(400, f"priority {plain[:40]!r}: expected a whole number from 0 to {_MOST_PRIORITY}")
    return int(plain)


async def _refused(site: ClusterSite, change: Button, request: Request, refusal: Refusal) -> Response:
    """The form again, with the reason, where the user can mend it; else the page of the error."""

    async def view(_: Request) -> View:
        if refusal.status != 400:
            raise refusal
        describe_write(request.scope, reason=refusal.reason)
        return await _form_view(site, change, request, refusal.reason, refusal.status)

    return await site.respond(request, view)


def _with_user(request: Request, path: str) -> str:
    """The address with the user that the request names, who makes the change."""
    user = request.query_params.get("user.name")
    return f"{path}?{urlencode({'user.name': user})}" if user else path
