"""POST /nodes/{node}/resource, and GET /queues/{queue}/access: what administrators change and ask."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from dispatcher.util.terminal import one_line
from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.records.acls import Caller, QueueACL
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.web.rest import ids
from statemachines.resourcemanager.web.rest.resources import amount
from statemachines.resourcemanager.web.rest.rest_endpoints import MOST_INT, answer, route
from statemachines.resourcemanager.web.rest.writing.bodies import MOST_LONG
from statemachines.resourcemanager.web.rest.writing.common import changing, fields_of
from statemachines.resourcemanager.web.shared import RMWeb, WriteDeadline
from statemachines.resourcemanager.web.users import is_user_name

if TYPE_CHECKING:
    from statemachines.resourcemanager.reports import NodeReport

_LOOK_S: Final = 0.01
_ACLS: Final = {acl.name: acl for acl in QueueACL}


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    async def set_resource(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        body = await fields_of(request)
        if not body.has("resource"):
            raise Refusal(400, 'resource: is missing; expected {"memory": MB, "vCores": number}')
        amounts = body.fields("resource")
        memory_mb, vcores = amounts.number("memory", None, 0, MOST_LONG), amounts.number("vCores", None, 0, MOST_INT)
        body.number("overCommitTimeout", -1, -1, MOST_LONG)
        rm.clients.acls.check_administrator(caller, "updateNodeResource")
        node_id = ids.node_id(request.path_params["node"])
        capacity = _node(rm, node_id).own_capacity._replace(memory_mb=memory_mb, vcores_milli=vcores * 1000)
        changed = rm.admin.update_node_resource_later(node_id, capacity, caller=caller)
        await deadline.result(changed, "it may still be done: send it again")
        total = await _resized(rm, node_id, capacity, deadline)
        return answer({"resourceInfo": amount(total)})

    async def access(request: Request) -> Response:
        return await _access(rm, request)

    return [
        changing(rm, "/nodes/{node}/resource", ["POST"], "updateNodeResource", set_resource),
        route(rm, "/queues/{queue:path}/access", access),
    ]


def _node(rm: RMWeb, node_id: str) -> NodeReport:
    node = rm.model.nodes.get(node_id)
    if node is None:
        raise Refusal(404, f"nodeId, {one_line(node_id, 200)}, is not found")
    return node


async def _resized(rm: RMWeb, node_id: str, capacity: Resource, deadline: WriteDeadline) -> Resource:
    """The node's own capacity once it is as wanted; otherwise what it is when the time is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(deadline.left_s()):
            while True:
                await deadline.published()
                if _node(rm, node_id).own_capacity == capacity:
                    break
                await asyncio.sleep(_LOOK_S)
    return _node(rm, node_id).own_capacity


async def _access(rm: RMWeb, request: Request) -> Response:
    """Whether a user may use or administer a queue; only for its administrators."""
    queue, parameters, acls = request.path_params["queue"], request.query_params, rm.clients.acls
    shown = one_line(queue, 200)
    path = acls.path_of(queue)
    if path is None or not any(each.path == path for each in rm.model.queues):
        raise Refusal(404, f"queue {shown} does not exist")
    caller = await rm.users.reader(request)
    if caller is None or not acls.check(path, QueueACL.ADMINISTER_QUEUE, caller):
        name = "nobody" if caller is None else caller.user
        raise Refusal(403, f"User={name} doesn't have access to queue={shown} so it cannot check ACLs for other users.")
    name, user = parameters.get("queue-acl-type", ""), parameters.get("user", "")
    acl = _ACLS.get(name)
    if acl is None:
        valid = f"valid queue acl types={{{'/'.join(_ACLS)}}}"
        raise Refusal(400, f"Specified queueAclType={one_line(name, 100)} is not a valid type, {valid}")
    if not is_user_name(user):
        raise Refusal(400, f"user={one_line(user, 100)}: expected the name of a user")
    is_allowed = acls.check(path, acl, await rm.users.caller(user))
    why = "" if is_allowed else f"User={user} doesn't have access to queue={shown} with acl-type={name}"
    return answer({"allowed": is_allowed, "user": user, "diagnostics": why})
