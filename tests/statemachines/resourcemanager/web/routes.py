"""Every route of the resource manager's web application, from its own table: pages, REST API, ops API and the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from starlette.routing import BaseRoute, Mount, Route

from ..inner import application_of
from .front import NODE, NODE_ID, Front, front, until

DEFAULT_DEADLINES = {"write_timeout_s": 10.0, "request_deadline_s": 15.0}
"""A request that does not arrive is refused before its client gives up."""
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


class Address(NamedTuple):
    """A route: its path with parameters in braces, and a method that it takes."""

    method: str
    path: str

    def filled(self, value: Callable[[str], str]) -> str:
        """The path with a value for each parameter, which is called `apps/app` if it comes after `/apps/`."""
        return _PARAMETER.sub(lambda found: value(f"{_word_before(self.path, found)}/{found[1]}"), self.path)


def _word_before(path: str, found: re.Match[str]) -> str:
    return path[: found.start()].rstrip("/").rpartition("/")[2]


def addresses(made: Front) -> list[Address]:
    return list(_walk(made.door.app.routes, ""))


def _walk(routes: Sequence[BaseRoute], prefix: str) -> Iterator[Address]:
    for each in routes:
        if isinstance(each, Mount):
            yield from _walk(each.routes, prefix + each.path)
        else:
            assert isinstance(each, Route), f"{each}: the walk does not know this kind of route"
            for method in sorted(each.methods or ()):
                yield Address(method, prefix + each.path)


class Known(NamedTuple):
    """What a resource manager has: values for the parameters of paths."""

    app: str
    attempt: str
    container: str
    dispatcher: str

    @classmethod
    def of(cls, made: Front) -> Known:
        """Waits until a container runs."""
        model = made.door.app.state.rm.model
        until(lambda: bool(model.containers), "a container runs")
        [(attempt, live), *_] = model.containers.items()
        return cls(application_of(attempt), attempt, next(iter(live)), made.manager.dispatcher.name)

    def value(self, parameter: str) -> str:
        """A value that exists, for a parameter as `Address.filled` calls it; for an unknown one an odd word."""
        return {
            "apps/app": self.app,
            "app/id": self.app,
            "app-activities/app": self.app,
            "entity/id": self.app,
            "entities/id": self.app,
            "appattempts/attempt": self.attempt,
            "appattempt/id": self.attempt,
            "containers/container": self.container,
            "container/id": self.container,
            "nodes/node": NODE_ID,
            "node/id": NODE_ID,
            "apps/state": "RUNNING",
            "nodes/state": "RUNNING",
            "timeouts/type": "LIFETIME",
            "queues/queue": "default",
            "static/name": "style.css",
            "dispatchers/name": self.dispatcher,
            "dispatcher/name": self.dispatcher,
            "machines/machine": "RMApp",
        }.get(parameter, "word")


@contextmanager
def running(journal: Path | None = None) -> Iterator[tuple[Front, Known]]:
    """An application whose master runs and never registers, and one that waits."""
    settings: dict[str, Any] = {"simulation": {"am_register_delay_ms": 3_600_000}, "ops": {"control": True}}
    with front(NODE, journal=journal, web={"anonymous_role": "admin", **DEFAULT_DEADLINES}, **settings) as made:
        made.submit("ann")
        made.submit("bob", resource={"memory": 1_000_000, "vCores": 1})
        yield made, Known.of(made)
