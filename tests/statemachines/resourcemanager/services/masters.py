"""The service for application masters as a stage for scenarios. A number is a container of the attempt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from dispatcher import DispatcherError
from statemachines.resourcemanager import ContainerRequest, ContainerStatus, FinalApplicationStatus, Resource
from statemachines.resourcemanager.machines.rmappattempt import MasterSession

from ..builders import event_for
from ..inner import AllocateResponse, MaximumAllocation, NodesListManagerEventType
from .desk import Desk

SIZES = {"small": Resource(1024, 1000), "large": Resource(2048, 2000), "huge": Resource(1_000_000, 1000)}
FIELDS: dict[str, dict[str, Any]] = {
    "unmanaged": {"unmanaged_am": True},
    "keeps": {"keep_containers_across_attempts": True},
    "to_a": {"queue": "root.a"},
}


class Masters:
    """One attempt, whose master calls."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.context, self.scheduler = self.desk.context, self.desk.desk_scheduler
        self.scheduler.too_large = {SIZES["huge"]}
        self.service = self.desk.masters
        self.entity = "appattempt_0_0009_000001"  # there is none
        self.before: AllocateResponse | None = None
        self.response: Any = None

    # -- what happens --------------------------------------------------------------------------------------------------

    def play(self, verb: str, *words: str) -> None:
        if verb[0] == "+":
            self.desk.clock.advance(int(verb))
        elif verb == "refused":
            with pytest.raises(DispatcherError) as refusal:
                self.play(*words)
            self.refusal = refusal.value
        else:
            getattr(self, f"_{verb}")(*words)

    def _attempt(self, state: str, *fields: str) -> None:
        """Its master may register."""
        self._of(self.desk.attempt(state, **_submission(fields)))
        self._session()

    def _of(self, attempt: Any) -> None:
        self.attempt, self.entity = attempt, attempt.entity

    def _session(self) -> None:
        self.context.master_sessions[self.entity] = MasterSession(self.context.node_changes.latest)

    def _registered(self, *fields: str) -> None:
        self._attempt("RUNNING", *fields)
        self._register()
        self._forget()

    def _second(self, *fields: str) -> None:
        """The second attempt of an application; its master may register."""
        first = self.desk.attempt("FAILED", **_submission(fields))
        first.app.start_attempt()
        self._of(first.app.attempts[1])
        self._session()

    def _ended(self, app_state: str = "") -> None:
        """An attempt that has ended, here or before a restart."""
        if app_state:
            self._of(self.desk.attempt("FINISHED"))
            self._app(app_state)
            return
        self._of(self.desk.attempt())
        for event in ("START", "KILL", "ATTEMPT_UPDATE_SAVED"):
            self.attempt.handle(event_for(self.attempt, event))
        self._forget()

    def _app(self, state: str) -> None:
        self.desk._put(self.attempt.app, state)

    def _forget(self) -> None:
        self.desk.posted.events.clear()

    def _register(self, *words: str) -> None:
        host, port, url = words or ("", "-1", "")
        self.response = self.service.register_application_master(self.entity, host, int(port), url)

    def _allocate(self, id: str | None = None, **more: Any) -> None:
        self.before = self.response
        response_id = None if id is None else int(id)
        self.response = self.service.allocate(self.entity, response_id=response_id, **more)

    def _finish(self, diagnostics: str = "", status: str = "SUCCEEDED", url: str = "") -> None:
        final_status = FinalApplicationStatus[status]
        self.done = self.service.finish_application_master(self.entity, diagnostics, final_status, url)

    def _ask(self, *sizes: str) -> None:
        self._allocate(asks=[ContainerRequest(SIZES[each]) for each in sizes])

    def _release(self, *containers: str) -> None:
        self._allocate(asks=[ContainerRequest(SIZES["small"])], releases=map(self._id, containers))

    def _ask_with(self, id: str, size: str) -> None:
        self._allocate(id, asks=[ContainerRequest(SIZES[size])])

    def _resize(self, *pairs: str) -> None:
        """`2=large`"""
        found = [each.split("=") for each in pairs]
        self._allocate(resizes=[(self._id(container), SIZES[size]) for container, size in found])

    def _progress(self, said: str, url: str | None = None) -> None:
        self._allocate(progress=float(said), tracking_url=url)

    def _watch(self) -> None:
        self.context.am_liveliness_monitor.register(self.entity)
        self._begun_ms = self.context.am_liveliness_monitor.next_deadline_ms()

    def _live(self, number: str, state: str = "RUNNING") -> None:
        self.desk.live(self.entity, int(number), state)

    def _others(self, number: str) -> None:
        """A live container of another application."""
        self.desk.live("appattempt_0_0002_000001", int(number))

    def _largest(self, memory_mb: str, vcores_milli: str) -> None:
        """Of a container."""
        vcores = None if vcores_milli == "any" else int(vcores_milli)
        self.scheduler.largest = MaximumAllocation(int(memory_mb), vcores)

    def _room(self, size: str) -> None:
        self.scheduler.room = SIZES[size]

    def _allocated(self, number: str) -> None:
        self.scheduler.allocated = [self.desk.live(self.entity, int(number), "ALLOCATED")]

    def _noticed(self, *numbers: str) -> None:
        self.scheduler.noticed = [self.desk.live(self.entity, int(number)) for number in numbers]

    def _exited(self, container: str, node: str = "node1:1") -> None:
        self.attempt.finished_containers.append((node, ContainerStatus(self._id(container), 0)))

    def _node(self, node: str, change: str) -> None:
        self.context.node_changes.note(node, NodesListManagerEventType[change])

    def _last_id(self, id: str) -> None:
        self.context.master_sessions[self.entity].response_id = int(id)

    def _says(self, words: str) -> None:
        assert words.replace("_", " ") in str(self.refusal).replace("_", " ")

    # -- what is seen --------------------------------------------------------------------------------------------------

    def look(self, what: str) -> Iterable[object]:
        response, posted, scheduler = self.response, self.desk.posted.events, self.scheduler
        looks = {
            "posted": lambda: [name.removeprefix("RMAppAttempt ") for name in self.desk.posted.news()],
            "refusal": lambda: [type(self.refusal).__name__.removesuffix("Error")],
            "lives_until": lambda: [self.context.am_liveliness_monitor.next_deadline_ms() - self._begun_ms],
            "queue": lambda: [response.queue],
            "previous": lambda: self._short(each.entity for each in response.containers_from_previous_attempts),
            "id": lambda: [response.response_id],
            "again": lambda: [response is self.before],
            "got": lambda: self._short(each.entity for each in response.allocated),
            "finished": lambda: self._short(each.container for each in response.finished),
            "updated": lambda: [f"{node}={type.name}" for node, type in response.updated_nodes],
            "preempted": lambda: self._short(response.preemption.containers) if response.preemption else [],
            "preempted_mb": lambda: [response.preemption.resource.memory_mb],
            "headroom": lambda: [response.headroom.memory_mb],
            "largest": lambda: response.maximum_allocation,
            "resized": lambda: self._short(id for id, _ in response.resized),
            "done": lambda: [self.done],
            "registered": lambda: [posted[0].host, posted[0].rpc_port, posted[0].tracking_url],
            "status": lambda: [posted[-1].progress, posted[-1].tracking_url],
            "pulled": lambda: self._pulled(),
            "asked": lambda: [ask.resource.memory_mb for _, ask in scheduler.asked],
            "released": lambda: self._short(id for _, id in scheduler.released),
            "granted": lambda: [f"{self._short([id])[0]}={size.memory_mb}" for id, size in scheduler.resized],
        }
        return looks[what]()

    def _pulled(self) -> list[str]:
        events = [each for each in self.desk.posted.events if each.type.name == "FINISHED_CONTAINERS_PULLED_BY_AM"]
        return [f"{each.entity}={','.join(self._short(each.about))}" for each in events]

    def _id(self, container: str) -> str:
        """Of the attempt, or `1/2` of the first attempt, by number; or another's in full."""
        if not container[0].isdigit():
            return container
        attempt, _, number = container.rpartition("/")
        return f"container_0_0001_{int(attempt or self.attempt.number):02d}_{int(number):06d}"

    def _short(self, containers: Iterable[str]) -> list[str]:
        own = f"container_0_0001_{self.attempt.number:02d}_"
        return [str(int(id.removeprefix(own))) if id.startswith(own) else id for id in containers]


def _submission(fields: Iterable[str]) -> dict[str, Any]:
    return {key: value for each in fields for key, value in FIELDS[each].items()}
