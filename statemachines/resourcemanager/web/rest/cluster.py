"""GET / and /info: the resource manager itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from statemachines.resourcemanager.web.rest.answers import BASE, answer, remote_exception

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    async def info(_: Request) -> Response:
        if rm.model.number == 0:
            return remote_exception(503, "the resource manager is starting", {"Retry-After": "1"})
        found, hadoop = rm.model.info, rm.config.hadoop_version
        own = f"central-dispatcher {_version()}"
        return answer(
            {
                "clusterInfo": {
                    "id": found.id,
                    "startedOn": found.started_ms,
                    "state": found.state,
                    "haState": "ACTIVE" if found.is_active else "STOPPED",
                    "rmStateStoreName": found.state_store,
                    "resourceManagerVersion": own,
                    "resourceManagerBuildVersion": own,
                    "resourceManagerVersionBuiltOn": "unknown",
                    "hadoopVersion": hadoop,
                    "hadoopBuildVersion": f"{hadoop} (the API of {own})",
                    "hadoopVersionBuiltOn": "unknown",
                }
            }
        )

    return [Route(path, info, methods=["GET"]) for path in (BASE, f"{BASE}/", f"{BASE}/info")]


@cache
def _version() -> str:
    try:
        return version("central-dispatcher")
    except PackageNotFoundError:  # the source is on the path, and nothing is installed
        return "of the source"
