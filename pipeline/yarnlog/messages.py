"""The kinds of message that are read, by what Hadoop's classes log.

What one class logs has changed little from Hadoop 2 to 3; where it has, both forms are here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from statemachines.conformance import arcs_of
from statemachines.registry import FACTORIES, HADOOP_CLASSES, factory_of

Kind = Literal[
    "transition", "invalid_transition", "invalid_event", "registration", "queue_size", "dispatch", "handling", "audit"
]
Fields = Mapping[str, str | int]

KINDS: Mapping[Kind, str] = {
    "transition": "a machine went from one state to another",
    "invalid_transition": "a machine refused an event in its state",
    "invalid_event": "a machine refused an event, and the log does not say in which state",
    "registration": "a dispatcher got a handler for a class of events",
    "queue_size": "how long an event queue is, or how much room is left",
    "dispatch": "what a dispatcher with a long queue handed out last",
    "handling": "a container launcher or a committer began on an event",
    "audit": "what a user or a master asked for, and whether it was granted",
}

_NODE_MANAGER = {
    "ApplicationImpl": "NMApplication",
    "Application": "NMApplication",
    "ContainerImpl": "NMContainer",
    "Container": "NMContainer",
    "LocalizedResource": "NMLocalizedResource",
}
"""Its machines by the class that logs, which older ones name by the interface. No tables of theirs are declared."""

_EVENT_CLASSES = {
    "NMApplication": "ApplicationEventType",
    "NMContainer": "ContainerEventType",
    "NMLocalizedResource": "ResourceEventType",
}
_DECLARING_PACKAGES = ("hadoop.yarn.server.resourcemanager.", "hadoop.mapreduce.")

# States are constants of an Enum, so capitals.
_STATES = re.compile(r"([A-Z][A-Z0-9_]*) to ([A-Z][A-Z0-9_]*)(?: on event ?=? ?(\w+))?", re.ASCII)
_MOVED_KINDS = ("TaskAttempt", "Task", "Job", "Container", "Node")
_RESOURCE = re.compile(r"(.+?)(?:\(->[^()]*\))?(?: size ?: ?-?\d+)?", re.ASCII | re.DOTALL)
"""Where a resource came from; where it went to, and its size, are not its name."""

_REFUSING_ENTITY = re.compile(
    r"App(?: attempt)?: (\S+) can't handle|at current state for (\S+)|container: \[([^\[\]]*)\]", re.ASCII
)
_REFUSED_AT = re.compile(r"Invalid event: (\w+) at (\w+)", re.ASCII)
_REFUSED_CURRENT = re.compile(r"Current: \[(\w+)\], eventType: \[(\w+)\]", re.ASCII)
_INVALID_EVENT = re.compile(r"Invalid event (\w+) on (?:\w+ +)?(\S+)(?: oldState (\w+))?", re.ASCII)

_CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_(\d{1,9})_\d+", re.ASCII)

_REGISTRATION = re.compile(r"Registering (?:class|interface) (\S+) for (?:class|interface) (\S+)", re.ASCII)
_QUEUE_SIZE = re.compile(r"Size of (?:(.+?) )?event-queue is (\d{1,18})", re.ASCII)
_ROOM_LEFT = re.compile(
    r"Very low remaining capacity (?:in the event-queue|on (.+?) ?event queue): ?(-?\d{1,18})", re.ASCII
)
_QUEUED = re.compile(r"Event type: (\S+), Event record counter: (\d{1,18})", re.ASCII)
_DISPATCHED = re.compile(r"Latest dispatch event type: (\S+)", re.ASCII)
_HANDLING = re.compile(r"Processing the event EventType: (\w+)(?: for container (\S+) taskAttempt (\S+))?", re.ASCII)

AUDIT_KEYS = (
    "USER", "IP", "OPERATION", "TARGET", "RESULT", "DESCRIPTION", "PERMISSIONS", "APPID", "APPATTEMPTID",
    "CONTAINERID", "RESOURCE", "CALLERCONTEXT", "CALLERSIGNATURE", "QUEUENAME", "NODELABEL", "INCLUDEAPPS",
    "INCLUDECHILDQUEUES", "RECURSIVE",
)  # fmt: skip
"""Those that Hadoop 2 and 3 write; one that is not here is kept, too."""
# A value can have tabs: diagnostics of several lines with a stack trace are one.
_TAB_BEFORE_KEY = re.compile(r"\t(?=[A-Z]+=)", re.ASCII)
# What was copied from a terminal has spaces for tabs.
_BEFORE_KEY = re.compile(rf"(?<!\s)\s+(?=(?:{'|'.join(AUDIT_KEYS)})=)", re.ASCII)


class Message(NamedTuple):
    """What a record says, in the journal's terms.

    For all but transitions `event_class` is the logging class and `event_type` tells the kind apart further.
    """

    kind: Kind
    event_class: str
    event_type: str
    """Empty where the log does not tell the event and the machine's table has more than one that it can be."""
    entity: str | None = None
    """None where the log does not say."""
    machine: str = ""
    from_state: str = ""
    to_state: str = ""
    is_told: bool = True
    """False: `event_type` is the only event by which the machine's table leads from the one state to the other."""
    error: str | None = None
    """What was refused or failed; None: nothing."""
    fields: Fields | None = None
    """What else the message says."""


def read_message(logger: str, message: str) -> Message | None:
    """What the first line of a record says; None if it is of no kind that is read.

    That may not be all: `with_more_lines` adds what the lines after it say.
    """
    if "ransitioned from " in message or " State change from " in message:
        return _transition(logger, message)
    if "handle this event at current state" in message:
        return _refusal(logger, message)
    if logger.endswith("AuditLogger"):
        return _audit(logger, message)
    for start, read in _BY_START:
        if message.startswith(start):
            return read(logger, message)
    return None


@lru_cache(maxsize=1024)
def simple_class(logger: str) -> str:
    """The name of a logger's class without its package and the classes around it."""
    return re.split(r"[.$]", logger)[-1]


@lru_cache(maxsize=1024)
def machine_of(logger: str) -> str:
    """The machine whose transitions the class logs: one of those declared, or a name for one that is not.

    Others than Hadoop have classes of the same simple name, and their packages tell them apart.
    """
    name = simple_class(logger)
    if name in HADOOP_CLASSES:
        is_foreign = logger.startswith("org.") and not any(package in logger for package in _DECLARING_PACKAGES)
        return name.removesuffix("Impl") if is_foreign else HADOOP_CLASSES[name]
    return _NODE_MANAGER.get(name) or name.removesuffix("Impl")


@lru_cache(maxsize=1024)
def event_class_of(machine: str) -> str:
    """The name of the Enum class of the events that the machine takes, for an unknown one a likely name."""
    if machine in FACTORIES:
        return type(next(factory_of(machine).transitions()).event).__name__
    return _EVENT_CLASSES.get(machine, f"{machine}EventType")


@lru_cache(maxsize=4096)
def only_event(machine: str, from_state: str, to_state: str) -> str:
    """The one event by which the machine's table leads from the one state to the other; empty if there is not one."""
    if machine not in FACTORIES:
        return ""
    events = [event for event, to_states in arcs_of(machine).get(from_state, {}).items() if to_state in to_states]
    return events[0] if len(events) == 1 else ""


def _transition(logger: str, message: str) -> Message | None:
    moved, _, states = message.partition(" State change from ")
    if not states:
        # In the ResourceManager and the MapReduce master with a capital, in the NodeManager without.
        moved, _, states = message.partition("ransitioned from ")
    found = _STATES.fullmatch(states)
    machine = machine_of(logger)
    entity = _moved_entity(moved)
    if found is None or not machine or not entity:
        return None
    from_state, to_state, told = found.groups()
    event = told or only_event(machine, from_state, to_state)
    fields = _of_container(entity) if event == "START" and machine == "RMContainer" else None
    is_told = told is not None
    event_class = event_class_of(machine)
    return Message(
        "transition", event_class, event, entity, machine, from_state, to_state, is_told=is_told, fields=fields
    )


def _moved_entity(moved: str) -> str:
    """`application_1_0001`, `job_1_0001Job T`, `host:8041 Node T`, `Container container_1_0001_01_000001 t`."""
    if moved.endswith(" T"):
        for kind in _MOVED_KINDS:
            if moved.endswith(kind, 0, -2):
                return moved[: -len(kind) - 2].rstrip(" ")  # the space before Job is missing in every version
    elif moved.endswith(" t"):
        kind, _, entity = moved[:-2].partition(" ")
        if kind == "Resource":
            resource = _RESOURCE.fullmatch(entity)
            return "" if resource is None else resource[1]
        return entity or kind
    return "" if " " in moved else moved


def _of_container(container: str) -> Fields | None:
    """What a container's id says."""
    found = _CONTAINER.fullmatch(container)
    if found is None:
        return None
    application, attempt = found.groups()
    return {
        "application": f"application_{application}",
        "attempt": f"appattempt_{application}_{int(attempt):06}",
    }


def _refusal(logger: str, message: str) -> Message | None:
    machine = machine_of(logger)
    if not machine:
        return None
    found = _REFUSING_ENTITY.search(message)
    entity = found and next(filter(None, found.groups()), None)
    refusal = Message("invalid_event", event_class_of(machine), "", entity, machine, error=message)
    current = _REFUSED_CURRENT.search(message)
    return refusal if current is None else _refused(refusal, current[2], current[1])


def _refused(refusal: Message, event: str, state: str) -> Message:
    return refusal._replace(kind="invalid_transition", event_type=event, from_state=state, to_state=state)


def with_more_lines(message: Message, logger: str, first_line: str, lines: list[str]) -> Message:
    """The message, and what the lines after the first say: the event that was refused, or the rest of an audit line."""
    if message.kind in ("invalid_event", "invalid_transition"):
        for line in lines:
            found = _REFUSED_AT.search(line)
            if found is not None:
                return _refused(message, found[1], found[2])._replace(error=line.strip())
    elif message.kind == "audit":
        return _audit(logger, "\n".join([first_line, *lines])) or message
    return message


def refused_entity(message: str) -> tuple[str, str] | None:
    """The event and the entity, if this is the line that a machine logs after the stack trace of a refusal."""
    if not message.startswith("Invalid event "):
        return None
    found = _INVALID_EVENT.fullmatch(message)
    return found and (found[1], found[2])


def _invalid_event(logger: str, message: str) -> Message | None:
    found = _INVALID_EVENT.fullmatch(message)
    machine = machine_of(logger)
    if found is None or not machine:
        return None
    event, entity, state = found.groups()
    refusal = Message("invalid_event", event_class_of(machine), event, entity, machine, error=message)
    return refusal if state is None else _refused(refusal, event, state)


def _registration(logger: str, message: str) -> Message | None:
    found = _REGISTRATION.fullmatch(message)
    if found is None:
        return None
    fields = {"event_class": found[1], "handler_class": found[2]}
    return Message("registration", simple_class(logger), "REGISTERED", found[1], fields=fields)


def _queue_size(logger: str, message: str) -> Message | None:
    if found := _QUEUE_SIZE.fullmatch(message):
        return _of_queue(logger, "QUEUE_SIZE", found[1], {"size": int(found[2])})
    if found := _ROOM_LEFT.fullmatch(message):
        return _of_queue(logger, "ROOM_LEFT", found[1], {"room_left": int(found[2])})
    if found := _QUEUED.fullmatch(message):
        return _of_queue(logger, "QUEUED_EVENTS", None, {"event_type": found[1], "size": int(found[2])})
    return None


def _of_queue(logger: str, event_type: str, queue: str | None, fields: dict[str, str | int]) -> Message:
    name = simple_class(logger)
    return Message("queue_size", name, event_type, queue or name, fields={"queue": queue or name, **fields})


def _dispatched(logger: str, message: str) -> Message | None:
    found = _DISPATCHED.fullmatch(message)
    return found and Message("dispatch", simple_class(logger), "DISPATCHED", fields={"event_type": found[1]})


def _handling(logger: str, message: str) -> Message | None:
    found = _HANDLING.fullmatch(message)
    if found is None:
        return None
    event, container, attempt = found.groups()
    fields = None if container is None else {"container": container, "attempt": attempt}
    return Message("handling", simple_class(logger), event, attempt, fields=fields)


def _audit(logger: str, message: str) -> Message | None:
    pairs = _TAB_BEFORE_KEY.split(message)
    if len(pairs) == 1:
        pairs = _BEFORE_KEY.split(message)
    fields = {key: value for key, _, value in (pair.strip().partition("=") for pair in pairs) if key}
    if not fields.get("OPERATION") or "USER" not in fields:
        return None
    error = None
    if fields.get("RESULT", "SUCCESS") != "SUCCESS":
        error = fields.get("DESCRIPTION", fields["RESULT"])
    entity = fields.get("CONTAINERID") or fields.get("APPATTEMPTID") or fields.get("APPID")
    return Message("audit", simple_class(logger), fields["OPERATION"], entity, error=error, fields=fields)


_BY_START: tuple[tuple[str, Callable[[str, str], Message | None]], ...] = (
    ("Registering ", _registration),
    ("Processing the event ", _handling),
    ("Size of ", _queue_size),
    ("Very low remaining capacity ", _queue_size),
    ("Event type: ", _queue_size),
    ("Latest dispatch ", _dispatched),
    ("Invalid event ", _invalid_event),
)
