"""GET /jmx: which beans, and which of their attributes, are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from statemachines.resourcemanager.web.jmx.beans import Snapshot, beans
from statemachines.resourcemanager.web.jmx.object_names import ALL, MalformedNameError, ObjectName
from statemachines.resourcemanager.web.rest.reading import guarded
from statemachines.resourcemanager.web.rest.rest_answers import json_answer, to_json

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb


def route(rm: RMWeb) -> Route:
    async def jmx(request: Request) -> Response:
        query = request.query_params
        wanted, attribute = query.get("qry", ALL), None
        if "get" in query:
            parts = query["get"].split("::")
            if len(parts) != 2 or not all(parts):
                return _error("get: the format is not as expected; write NAME::ATTRIBUTE")
            wanted, attribute = parts
        try:
            pattern = ObjectName.parse(wanted)
        except MalformedNameError as error:
            return _error(f"{'qry' if attribute is None else 'get'}: {error}")
        snapshot = Snapshot.of(rm)
        return await rm.workers.run(lambda: _answer(snapshot, pattern, attribute))

    return Route("/jmx", guarded(rm, jmx), methods=["GET"])


def _answer(snapshot: Snapshot, pattern: ObjectName, attribute: str | None) -> Response:
    """An attribute that a bean lacks ends the list, as in Hadoop. A worker's thread: many nodes take long."""
    found: list[dict[str, Any]] = []
    status = 200
    for bean in beans(snapshot):
        if not pattern.matches(bean.name):
            continue
        shown = {"name": str(bean.name), "modelerType": bean.modeler_type}
        if attribute is None:
            found.append(shown | bean.attributes())
            continue
        attributes = shown | bean.attributes()
        if attribute not in attributes:
            status = 404
            found.append(shown | _failure(f"No attribute with name {attribute} was found."))
            break
        found.append(shown | {attribute: attributes[attribute]})
    return json_answer(to_json({"beans": found}), status)


def _error(message: str) -> Response:
    return json_answer(to_json(_failure(message)), 400)


def _failure(message: str) -> dict[str, str]:
    return {"result": "ERROR", "message": message}
