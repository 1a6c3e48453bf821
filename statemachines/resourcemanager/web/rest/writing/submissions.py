"""POST /apps/new-application and POST /apps: applications come in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute

from dispatcher.web.plain_answers import Refusal
from dispatcher.web.security import describe_write
from statemachines.resourcemanager.records.acls import Caller
from statemachines.resourcemanager.records.ids import cluster_timestamp_of
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.web.rest.ids import application_id
from statemachines.resourcemanager.web.rest.resources import VCORES, amounts, at_most, shown
from statemachines.resourcemanager.web.rest.rest_endpoints import JSON, MOST_INT, answer
from statemachines.resourcemanager.web.rest.writing.common import address_of, changing, fields_of
from statemachines.resourcemanager.web.rest.writing.submission_body import submission_of
from statemachines.resourcemanager.web.shared import RMWeb, WriteDeadline

if TYPE_CHECKING:
    from statemachines.resourcemanager.reports import NodeReport

_DISABLED: Final = "App submission via REST is disabled."
_MANY: Final = 1000
"""Nodes: to look at so many takes noticeable time."""
_IN_USE: Final = frozenset({"RUNNING", "DECOMMISSIONING", "UNHEALTHY"})


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    largest = _Largest(rm)

    async def new_application(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        if not rm.config.submissions:
            return _disabled(request)
        new_id = rm.clients.get_new_application_later()
        app_id = await deadline.result(new_id, "ask again: a number that was used up without need does no harm")
        describe_write(request.scope, target=app_id)
        return answer({"application-id": app_id, "maximum-resource-capability": _capability(largest())})

    async def submit(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        if not rm.config.submissions:
            return _disabled(request)
        body = await fields_of(request)
        app_id = _own_id(rm, body.text("application-id"))
        describe_write(request.scope, target=app_id)
        submission = submission_of(body, app_id, caller.user)
        if app_id not in rm.model.apps:  # one that is known already is answered as it was then
            _check_size(submission.am_resource, largest())
        stored = rm.clients.submit_application_later(submission, caller=caller)
        again = f"it may still be stored: send it again with the same id, {app_id}, which submits nothing twice"
        await deadline.result(stored, again)
        await deadline.published()
        return Response(b"", 202, {"Location": address_of(request, f"/apps/{app_id}")}, JSON)

    return [
        changing(rm, "/apps/new-application", ["POST"], "Get New Application", new_application),
        changing(rm, "/apps", ["POST"], "Submit Application Request", submit),
    ]


def _disabled(request: Request) -> Response:
    """As Hadoop answers it: not in the form of its other errors."""
    describe_write(request.scope, reason=_DISABLED)
    return PlainTextResponse(_DISABLED, 403)


def _own_id(rm: RMWeb, text: str) -> str:
    """Raises Refusal (400) for what no resource manager of this cluster can have handed out."""
    app_id = application_id(text)
    now = rm.model.cluster_timestamp
    if cluster_timestamp_of(app_id) > now:
        raise Refusal(400, f"application-id: {app_id} is not from new-application: the cluster is at {now}")
    return app_id


class _Largest:
    """The largest container that is possible, of each type by itself: what is configured, and what the nodes have."""

    def __init__(self, rm: RMWeb) -> None:
        self._rm = rm
        self._found = Resource(MOST_INT, MOST_INT * 1000, MOST_INT)
        self._of: object = None  # the nodes that it was found among
        self._until_s = 0.0  # by the loop's clock: not looked for before that

    def __call__(self) -> Resource:
        """As of the last publication; among many nodes, as of a second ago."""
        nodes, now_s = self._rm.model.nodes, asyncio.get_running_loop().time()
        if self._rm.model.may_lack_nodes():
            return self._look({})
        if nodes is not self._of and now_s >= self._until_s:
            self._of, self._found = nodes, self._look(nodes)
            self._until_s = now_s + 1 if len(nodes) > _MANY else 0.0
        return self._found

    def _look(self, nodes: Mapping[str, NodeReport]) -> Resource:
        most = at_most(self._rm.model.maximum_allocation)
        capacities = [node.own_capacity for node in nodes.values() if node.state in _IN_USE]
        if not capacities:
            return most
        return Resource(
            min(most.memory_mb, max(each.memory_mb for each in capacities)),
            min(most.vcores_milli, max(each.vcores_milli for each in capacities)),
            max(each.gpus for each in capacities),
        )


def _capability(most: Resource) -> dict[str, Any]:
    found = {**amounts(most), VCORES: most.vcores_milli // 1000}
    return shown(found, found)


def _check_size(asked: Resource, most: Resource) -> None:
    """Raises Refusal (400) for a master that no node could ever take."""
    if asked.memory_mb > most.memory_mb:
        raise Refusal(400, f"resource.memory: is {asked.memory_mb:,} MB; the maximum is {most.memory_mb:,} MB")
    if asked.vcores_milli > most.vcores_milli:
        cores = f"the maximum is {most.vcores_milli / 1000:,g}"
        raise Refusal(400, f"resource.vCores: is {asked.vcores_milli // 1000:,}; {cores}")
