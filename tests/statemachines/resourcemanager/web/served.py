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
from dispatcher.web import WebHost
from statemachines.resourcemanager import ResourceManager
from statemachines.resourcemanager.web import RMWebConfig, resource_manager_app
from statemachines.resourcemanager.web.rest import error_body

from ...simulation.replays import TIMEOUT_S

BASE = "/ws/v1/cluster"


class Served:
    """Serves within a `with`. `get` shows all that the handler thread has done before."""

    def __init__(self, manager: ResourceManager, **web: Any) -> None:
        settings = RMWebConfig.model_validate({"port": 0, "unix_socket": False, "refresh_ms": 10, **web})
        self.app = resource_manager_app(manager, settings, OpsConfig(enabled=False))
        self.rm = self.app.state.rm
        self.app.router.routes[:0] = [Route("/published", self._published), Route("/tasks", self._tasks)]
        self._host = WebHost(self.app, settings, name="rm", error_body=error_body)

    def __enter__(self) -> Served:
        self._host.init()
        self._host.start()
        self._client = httpx.Client(base_url=self.url, timeout=TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self._host.stop()

    @property
    def url(self) -> str:
        assert self._host.url is not None
        return self._host.url

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
