"""A client of an ASGI app, without a server, and dispatchers to look at."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import httpx

from dispatcher import AsyncDispatcher, DispatcherConfig
from dispatcher.web import Principal

WAIT_S = 60.0


class Job(Enum):
    START = auto()
    FAIL = auto()
    HANG = auto()
    WAIT = auto()


@dataclass(frozen=True)
class JobEvent:
    type: Job
    entity: str | None = None


def seeing(sees: Callable[[str | None], bool]) -> Any:
    """`may_see` of users who see the entities of which this is true; None stands for everything."""

    async def may_see(_: object) -> Callable[[str | None], bool]:
        return sees

    return may_see


ENTITIES_ONLY = seeing(lambda entity: entity is not None)


class Client:
    """Sends requests to an ASGI app; `role`: of the user, as a web host would put it into the scope."""

    def __init__(self, app: Any, role: Any = None, prefix: str = "/v1") -> None:
        self._app = app
        self._role = role
        self._prefix = prefix

    def get(self, path: str, **params: Any) -> httpx.Response:
        return self.request("GET", path, params=params)

    def json(self, path: str, **params: Any) -> Any:
        response = self.get(path, **params)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        return response.json()

    def error(self, path: str, **params: Any) -> tuple[int, str]:
        """Status and message of a refusal, which is one line."""
        response = self.get(path, **params)
        body = response.json()
        assert list(body) == ["error"]
        assert "\n" not in body["error"]
        return response.status_code, body["error"]

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.request("POST", path, json=body)

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return asyncio.run(self.send(method, path, **more))

    async def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._with_user)
        async with httpx.AsyncClient(transport=transport, base_url="http://daemon") as client:
            return await client.request(method, f"{self._prefix}{path}", **more)

    async def _with_user(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if self._role is not None:
            scope["principal"] = Principal("tester", self._role)
        await self._app(scope, receive, send)


@dataclass
class Hanging:
    """A dispatcher whose handler hangs at HANG, in `hang_here`, until `release` is set."""

    dispatcher: AsyncDispatcher
    entered: threading.Event
    release: threading.Event

    def handle(self, event: JobEvent) -> None:
        if event.type is Job.FAIL:
            raise ValueError(f"no such job\n{event.entity}")
        if event.type is Job.HANG:
            self.hang_here()

    def hang_here(self) -> None:
        self.entered.set()
        self.release.wait(WAIT_S)

    def post(self, type: Job, entity: str | None = None) -> None:
        assert self.dispatcher.event_handler.handle(JobEvent(type, entity))

    def hang(self, entity: str | None = None) -> None:
        self.post(Job.HANG, entity)
        assert self.entered.wait(WAIT_S)


@contextlib.contextmanager
def hanging(name: str = "central", **options: Any) -> Iterator[Hanging]:
    """A started dispatcher that can be made to hang."""
    config = DispatcherConfig(measure_times="all")
    found = Hanging(AsyncDispatcher(config, name=name, **options), threading.Event(), threading.Event())
    found.dispatcher.register(Job, found.handle, events=JobEvent)
    with found.dispatcher:
        try:
            yield found
        finally:
            found.release.set()
