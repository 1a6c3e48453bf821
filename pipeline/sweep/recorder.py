"""Measurements of a run, taken during the run. Keeps sums for ended containers, and one wait per application."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from enum import Enum
from typing import Any

from statemachines.recorder import TransitionRecorder
from statemachines.resourcemanager.machines.rmcontainer import CONTAINER_FINAL_STATES
from statemachines.resourcemanager.machines.states import FINAL_STATES
from statemachines.resourcemanager.resource import Resource

_APPLICATION_ENDS = frozenset(state.name for state in FINAL_STATES)
_CONTAINER_ENDS = frozenset(state.name for state in CONTAINER_FINAL_STATES)


class RunRecorder(TransitionRecorder):
    """Counts transitions, and measures waits and resource use. Read it once the handler thread has ended.

    A container uses its resources from its allocation to its end.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__()
        self._now_ms = now_ms
        self._waiting: dict[str, int] = {}  # submission time of each application without a container
        self._taken: dict[str, tuple[int, Resource]] = {}  # by running container: allocation time and resources
        self._first_submission_ms: int | None = None
        self._last_end_ms: int | None = None
        self._used = [0, 0, 0]  # of ended containers, in the units of `used`
        self.containers = 0
        self.waits_ms = array("q")
        """One per application with a container, in the order of their first containers."""

    @property
    def span_ms(self) -> int | None:
        """From the first submission to the last end; None if nothing has ended."""
        if self._first_submission_ms is None or self._last_end_ms is None:
            return None
        return self._last_end_ms - self._first_submission_ms

    def used(self) -> tuple[int, int, int]:
        """Resource use until the last end: memory (MB), vcores and GPUs (thousandths), each times ms."""
        used = list(self._used)
        for since_ms, resource in self._taken.values():
            _add(used, resource, max(0, (self._last_end_ms or 0) - since_ms))
        return used[0], used[1], used[2]

    def post_transition(self, operand: Any, before: Enum, after: Enum, event: Any) -> None:
        super().post_transition(operand, before, after, event)
        if operand.machine == "RMContainer":
            self._container(operand, after._name_)
        elif operand.machine == "RMApp":
            self._application(operand.entity, before._name_, after._name_)

    def _application(self, application: str, before: str, after: str) -> None:
        if before == "NEW":
            now_ms = self._now_ms()
            self._waiting[application] = now_ms
            if self._first_submission_ms is None:
                self._first_submission_ms = now_ms
        if after in _APPLICATION_ENDS:
            self._last_end_ms = self._now_ms()

    def _container(self, container: Any, after: str) -> None:
        if after == "ALLOCATED":
            now_ms = self._now_ms()
            self.containers += 1
            self._taken[container.entity] = now_ms, container.request.resource
            submitted_ms = self._waiting.pop(container.application, None)
            if submitted_ms is not None:
                self.waits_ms.append(now_ms - submitted_ms)
        elif after in _CONTAINER_ENDS:
            taken = self._taken.pop(container.entity, None)
            if taken is not None:
                since_ms, resource = taken
                self._last_end_ms = now_ms = self._now_ms()
                _add(self._used, resource, now_ms - since_ms)


def _add(used: list[int], resource: Resource, ms: int) -> None:
    used[0] += resource.memory_mb * ms
    used[1] += resource.vcores_milli * ms
    used[2] += resource.gpu_milli_total * ms
