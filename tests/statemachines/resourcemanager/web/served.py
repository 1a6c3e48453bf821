"""A resource manager's app on a free port of loopback, as clients see it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dispatcher.ops import OpsConfig
from statemachines.resourcemanager import Resource, ResourceManager
from statemachines.resourcemanager.web import RMDoor, RMWebConfig

from ...simulation.replays import TIMEOUT_S
from .front import PATIENT

BASE = "/ws/v1/cluster"


def amount(resource: Resource) -> dict[str, Any]:
    """A resource as Hadoop's API has it: whole cores and GPUs, rounded up."""
    whole = {
        "memory-mb": resource.memory_mb,
        "vcores": -(-resource.vcores_milli // 1000),
        "yarn.io/gpu": -(-resource.gpu_milli_total // 1000),
        **dict(resource.others),
    }
    kind, limits = {"resourceType": "COUNTABLE"}, {"minimumAllocation": 0, "maximumAllocation": 2**63 - 1}
    types = [
        {"name": name, **kind, "units": "Mi" if name == "memory-mb" else "", "value": value, **limits}
        for name, value in whole.items()
    ]
    return {
        "memory": whole["memory-mb"],
        "vCores": whole["vcores"],
        "resourceInformations": {"resourceInformation": types},
    }


class Served:
    """Serves within a `with`. `get` shows all that the handler thread has done before."""

    def __init__(self, manager: ResourceManager, **web: Any) -> None:
        settings = RMWebConfig.model_validate({"port": 0, "unix_socket": False, "refresh_ms": 10, **PATIENT, **web})
        self._door = RMDoor(manager, settings, OpsConfig(enabled=False))
        self.app = self._door.app
        self.rm = self.app.state.rm
        self.app.router.routes[:0] = [Route("/published", self._published), Route("/tasks", self._tasks)]

    def __enter__(self) -> Served:
        self._door.init()
        self._door.start()
        self._client = httpx.Client(base_url=self.url, timeout=TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self._door.stop()

    @property
    def url(self) -> str:
        assert self._door.url is not None
        return self._door.url

    async def _published(self, _: Request) -> Response:
        await self.rm.model.published(TIMEOUT_S)
        return Response()

    def tasks(self) -> int:
        """How many tasks the loop has, without those of this request."""
        return int(self._client.get("/tasks").text)

    async def _tasks(self, _: Request) -> Response:
        # All of a client that has left may take a few turns to end.
        own = asyncio.current_task()
        return PlainTextResponse(str(sum(each is not own for each in asyncio.all_tasks())))

    def publish(self) -> None:
        """All that the handler thread has done is in the model then."""
        assert self._client.get("/published").status_code == 200

    def ask(self, path: str, method: str = "GET", **more: Any) -> httpx.Response:
        """`path`: below the base, or a whole one."""
        whole = path if path.startswith(("/ws", "//")) else BASE + path
        return self._client.request(method, self.url + whole, **more)

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of an answer that has to be 200."""
        self.publish()
        answer = self.ask(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refusal(self, path: str, method: str = "GET", **more: Any) -> tuple[int, str]:
        """Status and message of an error in Hadoop's form."""
        answer = self.ask(path, method, **more)
        error = answer.json()["RemoteException"]
        assert set(error) == {"exception", "message", "javaClassName"}
        assert error["javaClassName"].endswith("." + error["exception"])
        return answer.status_code, error["message"]
