"""The life of one entity as a scenario: the events that it gets, and what it then is, keeps and posts.

    "app RUNNING attempts=2 | +10 | KILL diagnostics=because -> state KILLING ; KILL.diagnostics because"

The first step makes the entity in a state. `+10` lets that many milliseconds pass; any other step is an event, made as
its sender would make it, with these attributes. One looks at `state`, at what was `posted` since the step began, at the
entity by `entity.finish_ms`, and at what it posted last of a type by `KILL.entity`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from statemachines.resourcemanager import ContainerStatus, FinalApplicationStatus, Resource

from ..builders import MASTER, TASK, Workshop, send

KNOWN: dict[str, Any] = {
    "None": None,
    "True": True,
    "False": False,
    "FAILED": FinalApplicationStatus.FAILED,
    "MASTER": MASTER,
    "TASK": TASK,
}


def value_of(text: str) -> Any:
    """A number, a name of KNOWN, a container that ended as `TASK:3`, a size as `2048x2000`, or a text."""
    name, is_pair, number = text.partition(":")
    if is_pair and name in ("MASTER", "TASK"):
        return ContainerStatus(KNOWN[name], int(number))
    memory, is_size, vcores = text.partition("x")
    if is_size and memory.isdigit():
        return Resource(int(memory), int(vcores))
    return int(text) if text.lstrip("-").isdigit() else KNOWN.get(text, text)


class MachineStage:
    def __init__(self, **config: Any) -> None:
        self.workshop = Workshop(**config)
        self.entity: Any = None
        self.step: list[Any] = []  # posted in the last step
        self.all: dict[str, Any] = {}  # the last event that was posted of each type

    def play(self, verb: str, *words: str) -> None:
        posted = self.workshop.posted.events
        posted.clear()
        more = {key: value_of(value) for key, _, value in (word.partition("=") for word in words if "=" in word)}
        if verb.startswith("+"):
            self.workshop.clock.advance(int(verb))
        elif self.entity is None:
            self.entity = getattr(self.workshop, verb)(words[0], **more)
        else:
            getattr(self, f"do_{verb}")(**more) if verb.islower() else send(self.entity, verb, **more)
        self.step = list(posted)
        self.all |= {event.type.name: event for event in posted}
        assert all(machine.invalid == 0 for machine in self.workshop.recorder.machines.values()), verb

    def do_set(self, **values: Any) -> None:
        """Attributes of the entity."""
        for name, value in values.items():
            setattr(self.entity, name, value)

    def look(self, what: str) -> Iterable[object]:
        if what == "state":
            return [self.entity.state.name]
        if what == "posted":
            return [event.type.name for event in self.step]
        if what.startswith("in_"):  # a monitor
            return [self.entity.entity in getattr(self.workshop.context, what[3:])]
        root, *path = what.split(".")
        found: Any = self.entity if root == "entity" else self.all[root]
        for name in path:
            found = getattr(found, name)
        if isinstance(found, (list, tuple, set)) and not hasattr(found, "_fields"):
            return map(shown, sorted(found) if isinstance(found, set) else found)
        return [shown(found)]


def shown(value: Any) -> object:
    """As scripts write it."""
    if isinstance(value, Resource):
        return f"{value.memory_mb}x{value.vcores_milli}"
    return getattr(value, "name", value)
