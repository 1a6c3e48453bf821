"""A service that the tests of services watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher import Service


class Recorder(Service):
    """Records its hooks, and does in each what the test says."""

    def __init__(self, **hooks: Callable[[], Any]) -> None:
        super().__init__("recorder")
        self.hooks = hooks
        self.calls: list[str] = []

    def service_init(self, config: Any) -> None:
        self._run("init")

    def service_start(self) -> None:
        self._run("start")

    def service_stop(self) -> None:
        self._run("stop")

    def _run(self, hook: str) -> None:
        self.calls.append(hook)
        self.hooks.get(hook, lambda: None)()


def fail() -> None:
    raise LookupError("lost")
