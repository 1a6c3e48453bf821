"""The known kinds of message, by the texts that Hadoop's classes log; where Hadoop 2 and 3 differ, both texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Literal, NamedTuple

from statemachines.conformance import arcs_of
from statemachines.registry import FACTORIES, HADOOP_CLASSES, factory_of
from statemachines.releases.differences import ANY, RELEASES

Kind = Literal[
    "transition",  # a machine changed its state
    "invalid_transition",  # a machine refused an event in its state
    "invalid_event",  # a machine refused an event; the log does not name the state
    "registration",  # a handler was registered with a dispatcher for a class of events
    "queue_size",  # the size or the remaining capacity of an event queue
    "dispatch",  # the last event that a dispatcher with a long queue handed out
    "handling",  # a container launcher or a committer began to handle an event
    "audit",  # a request of a user or an application master, and whether it was granted
]
Fields = Mapping[str, str | int]

MARKERS = ("ransitioned from", "State change from", "OPERATION=")
"""A line with one of these is a transition or an audit line; a line that has one and is not parsed is in an unknown
format."""

_DECLARING_PACKAGES = (
    "hadoop.yarn.server.resourcemanager.",
    "hadoop.yarn.server.nodemanager.",
    "hadoop.mapreduce.",
)

# States are Enum constants, written in capitals.
_STATES = re.compile(r"([A-Z][A-Z0-9_]*) to ([A-Z][A-Z0-9_]*)(?: on event ?=? ?(\w+))?", re.ASCII)
_ENTITY_KINDS = ("TaskAttempt", "Task", "Job", "Container", "Node")
_RESOURCE = re.compile(r"(.+?)(?:\(->[^()]*\))?(?: size ?: ?-?\d+)?", re.ASCII | re.DOTALL)
"""A localized resource is named by its source, without the local path and the size."""

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
"""The keys that Hadoop 2 and 3 write; other keys are kept as well."""
# A value can contain tabs: diagnostics with a stack trace do.
_TAB_BEFORE_KEY = re.compile(r"\t(?=[A-Z]+=)", re.ASCII)
# Text copied from a terminal has spaces instead of tabs.
_BEFORE_KEY = re.compile(rf"(?<!\s)\s+(?=(?:{'|'.join(AUDIT_KEYS)})=)", re.ASCII)


class Message(NamedTuple):
    """A record's message in the journal's terms.

    Except for transitions, `event_class` is the logging class and `event_type` refines the kind.
    """

    kind: Kind
    event_class: str
    event_type: str
    """Empty if the log does not name the event and the machine's table allows several."""
    entity: str | None = None
    """None if the log does not name it."""
    machine: str = ""
    from_state: str = ""
    to_state: str = ""
    is_told: bool = True
    """False: the log does not name the event; `event_type` is the only one for which the table has this transition."""
    error: str | None = None
    """The refusal or failure; None: neither."""
    fields: Fields | None = None
    """Further values in the message."""


def read_message(logger: str, message: str) -> Message | None:
    """Parse the first line of a record; None: an unknown kind. `with_more_lines` adds the record's other lines."""
    if " from " in message and ("ransitioned from " in message or " State change from " in message):
        return _transition(logger, message)
    if "handle this event at current state" in message:
        return _refusal(logger, message)
    if logger.endswith("AuditLogger"):
        return _audit(logger, message)
    if not message.startswith(_STARTS):
        return None
    for start, pattern, read in _BY_START:
        if message.startswith(start) and (found := pattern.fullmatch(message)) is not None:
            return read(logger, found)
    return None


@lru_cache(maxsize=1024)
def simple_class(logger: str) -> str:
    """The name of a logger's class without its package and enclosing classes."""
    return re.split(r"[.$]", logger)[-1]


@lru_cache(maxsize=1024)
def machine_of(logger: str) -> str:
    """The machine whose transitions the class logs: a declared one, or a name derived from the class.

    Other products have classes of the same simple name, in other packages.
    """
    name = simple_class(logger)
    if name in HADOOP_CLASSES:
        is_foreign = logger.startswith("org.") and not any(package in logger for package in _DECLARING_PACKAGES)
        return name.removesuffix("Impl") if is_foreign else HADOOP_CLASSES[name]
    return name.removesuffix("Impl")


@lru_cache(maxsize=1024)
def event_class_of(machine: str) -> str:
    """The Enum class of the machine's events; for an unknown machine a likely name."""
    if machine in FACTORIES:
        return type(next(factory_of(machine).transitions()).event).__name__
    return f"{machine}EventType"


@lru_cache(maxsize=4096)
def only_event(machine: str, from_state: str, to_state: str) -> str:
    """The only event that makes this transition in the machine's tables, of whichever release of Hadoop.

    Empty if there are none or several. The early releases count only where the later ones do not have the transition.
    """
    if machine not in FACTORIES:
        return ""
    for releases in (RELEASES, (ANY,)):
        tables = [arcs_of(machine, release).get(from_state, {}) for release in releases]
        events = {event for table in tables for event, to_states in table.items() if to_state in to_states}
        if events:
            return events.pop() if len(events) == 1 else ""
    return ""


def _transition(logger: str, message: str) -> Message | None:
    subject, _, states = message.partition(" State change from ")
    if not states:
        # "Transitioned" in the ResourceManager and the MapReduce master, "transitioned" in the NodeManager.
        subject, _, states = message.partition("ransitioned from ")
    found = _STATES.fullmatch(states)
    machine = machine_of(logger)
    entity = _entity_of(subject)
    if found is None or not machine or not entity:
        return None
    from_state, to_state, named = found.groups()
    event = named or only_event(machine, from_state, to_state)
    fields = _of_container(entity) if event == "START" and machine == "RMContainer" else None
    is_told, event_class = named is not None, event_class_of(machine)
    return Message(
        "transition", event_class, event, entity, machine, from_state, to_state, is_told=is_told, fields=fields
    )


def _entity_of(subject: str) -> str:
    """`application_1_0001`, `job_1_0001Job T`, `host:8041 Node T`, `Container container_1_0001_01_000001 t`."""
    if subject.endswith(" T"):
        for kind in _ENTITY_KINDS:
            if subject.endswith(kind, 0, -2):
                return subject[: -len(kind) - 2].rstrip(" ")  # the space before Job is missing in every version
    elif subject.endswith(" t"):
        kind, _, entity = subject[:-2].partition(" ")
        if kind == "Resource":
            resource = _RESOURCE.fullmatch(entity)
            return "" if resource is None else resource[1]
        return entity or kind
    return "" if " " in subject else subject


def _of_container(container: str) -> Fields | None:
    """The application and the attempt in a container's id."""
    found = _CONTAINER.fullmatch(container)
    if found is None:
        return None
    application, attempt = found.groups()
    return {"application": f"application_{application}", "attempt": f"appattempt_{application}_{int(attempt):06}"}


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
    """Add the lines after the first: the refused event, or the rest of an audit line."""
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
    found = _INVALID_EVENT.fullmatch(message)
    return found and (found[1], found[2])


def _invalid_event(logger: str, found: re.Match[str]) -> Message | None:
    machine = machine_of(logger)
    if not machine:
        return None
    event, entity, state = found.groups()
    refusal = Message("invalid_event", event_class_of(machine), event, entity, machine, error=found.string)
    return refusal if state is None else _refused(refusal, event, state)


def _registration(logger: str, found: re.Match[str]) -> Message:
    fields = {"event_class": found[1], "handler_class": found[2]}
    return Message("registration", simple_class(logger), "REGISTERED", found[1], fields=fields)


def _of_queue(event_type: str, number: str, logger: str, found: re.Match[str]) -> Message:
    name = simple_class(logger)
    queue = found[1] or name
    return Message("queue_size", name, event_type, queue, fields={"queue": queue, number: int(found[2])})


def _queued(logger: str, found: re.Match[str]) -> Message:
    name = simple_class(logger)
    fields = {"queue": name, "event_type": found[1], "size": int(found[2])}
    return Message("queue_size", name, "QUEUED_EVENTS", name, fields=fields)


def _dispatched(logger: str, found: re.Match[str]) -> Message:
    return Message("dispatch", simple_class(logger), "DISPATCHED", fields={"event_type": found[1]})


def _handling(logger: str, found: re.Match[str]) -> Message:
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


_BY_START: tuple[tuple[str, re.Pattern[str], Callable[[str, re.Match[str]], Message | None]], ...] = (
    ("Registering ", _REGISTRATION, _registration),
    ("Processing the event ", _HANDLING, _handling),
    ("Size of ", _QUEUE_SIZE, partial(_of_queue, "QUEUE_SIZE", "size")),
    ("Very low remaining capacity ", _ROOM_LEFT, partial(_of_queue, "ROOM_LEFT", "room_left")),
    ("Event type: ", _QUEUED, _queued),
    ("Latest dispatch ", _DISPATCHED, _dispatched),
    ("Invalid event ", _INVALID_EVENT, _invalid_event),
)
_STARTS = tuple(start for start, _, _ in _BY_START)
