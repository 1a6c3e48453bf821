"""Models of the ops API's answers, with the fields that the commands show.

Answers are validated on receipt: numbers are finite and within bounds. Unknown keys are ignored, and most missing ones
have a default, so daemons of other versions can be inspected. Texts are escaped where they are printed.
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel

from dispatcher.util.figures import counted

Item = TypeVar("Item")

Whole = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Real = Annotated[float, Field(ge=-1e18, le=1e18, allow_inf_nan=False)]


class Answer(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Page(Answer, Generic[Item]):
    """A page of a list."""

    items: list[Item]
    next: str | int | None = None
    total: Whole | None = None


class Reason(Answer):
    """Why a daemon is not ready."""

    reason: str
    dispatcher: str | None = None
    service: str | None = None
    seconds: Real | None = None


class Health(Answer):
    """Whether a daemon is ready, as `/readyz` says."""

    status: str
    reasons: list[Reason] = []


class Service(Answer):
    """A service of the daemon, with its own services."""

    name: str
    kind: str = Field(default="", alias="class")
    state: str = ""
    failure: str | None = None
    services: list[Service] = []


class Process(Answer):
    """`/process`."""

    pid: Whole
    name: str
    uptime_s: Real
    started_at: Real | None = None
    python: str = ""
    version: str | None = None
    cpu_s: Real | None = None
    rss_bytes: Whole | None = None
    threads: Whole | None = None
    open_files: Whole | None = None
    loadavg: list[Real] | None = None
    health: Health
    services: list[Service] = []


class Queue(Answer):
    """A dispatcher's queue."""

    size: Whole
    capacity: Whole | None = None
    policy: str = ""
    oldest_wait_s: Real | None = None


class Rate(Answer):
    """Events per second over the last 1, 10 and 60 s; None: not known yet."""

    s1: Real | None = Field(default=None, alias="1s")
    s10: Real | None = Field(default=None, alias="10s")
    s60: Real | None = Field(default=None, alias="60s")


class JournalNumbers(Answer):
    """The journal of a dispatcher."""

    path: str = ""
    bytes: Whole | None = None
    segments: Whole | None = None
    outstanding: Whole | None = None
    failed: bool = False


class Frame(Answer):
    """A line of a stack."""

    file: str
    line: Whole | None = None
    function: str = ""
    code: str | None = None
    internal: bool = False


class Running(Answer):
    """What a handler thread is doing."""

    kind: str = "event"
    event_class: str = ""
    event_type: str = ""
    entity: str | None = None
    description: str = ""
    since: Real | None = None
    running_s: Real = 0.0
    stack: list[Frame] = []

    @property
    def what(self) -> str:
        """The event's class, type and entity, or the mail's description."""
        if self.kind == "mail":
            return f"mail: {self.description}" if self.description else "a mail"
        return event_name(self.event_class, self.event_type) + (f" of {self.entity}" if self.entity else "")


class RunningOrNull(RootModel[Running | None]):
    """`/dispatchers/{name}/running`."""


class ScheduledPost(Answer):
    """An event that waits for the time of its post."""

    due: Real
    every_s: Real | None = None
    key: str = ""
    event_class: str = ""
    event_type: str = ""
    entity: str | None = None

    @property
    def what(self) -> str:
        name = event_name(self.event_class, self.event_type) if self.event_class else self.event_type
        return name + (f" of {self.entity}" if self.entity else "")


class Schedule(Answer):
    """What a dispatcher will post."""

    count: Whole = 0
    fired: Whole = 0
    skipped: Whole = 0
    next: list[ScheduledPost] = []


class DeadLetters(Answer):
    """The dead letters of a dispatcher."""

    count: Whole = 0
    lost: Whole = 0

    @property
    def what(self) -> str:
        """`3 dead letters, 1 of them lost`."""
        letters = counted(self.count, "dead letter")
        return f"{letters}, {self.lost:,} of them lost" if self.lost else letters


class DispatcherNumbers(Answer):
    """One of `/dispatchers`."""

    name: str
    kind: str = ""
    state: str
    queue: Queue
    accepted: Whole = 0
    handled: Whole = 0
    failed: Whole = 0
    retrying: Whole = 0
    dead_letters: DeadLetters | None = None
    discarded: dict[str, Whole] = {}
    rejected: dict[str, Whole] = {}
    scheduled: Schedule = Schedule()
    rate: Rate = Rate.model_validate({})
    failure_rate: Rate = Rate.model_validate({})
    idle_share_10s: Real | None = None
    running: Running | None = None
    mails: Whole | None = None
    mailbox_latency_s: Real | None = None
    journal: JournalNumbers | None = None
    is_drained: bool = False
    failure: str | None = None


class TypeNumbers(Answer):
    """One of `/dispatchers/{name}/types`."""

    event_class: str = ""
    event_type: str = ""
    queued: Whole = 0
    handled: Whole = 0
    failed: Whole = 0
    slow: Whole = 0
    rate_10s: Real | None = None
    failed_rate_10s: Real | None = None
    handling_mean_s: Real | None = None
    handling_share_10s: Real | None = None
    queue_mean_s: Real | None = None

    @property
    def name(self) -> str:
        return event_name(self.event_class, self.event_type)


class QueuedEntity(Answer):
    """One of `/dispatchers/{name}/queue?by=entity`."""

    entity: str
    queued: Whole = 0


class QueuedEntities(Page[QueuedEntity]):
    """`/dispatchers/{name}/queue?by=entity`."""

    approximate: bool = False
    """Scaled from a sample of a long queue."""


class Failure(Answer):
    """One of `/dispatchers/{name}/failures`."""

    number: Whole = 0
    at: Real
    event_class: str = ""
    event_type: str = ""
    entity: str | None = None
    error_class: str = ""
    message: str = ""
    frames: list[str] = []

    @property
    def what(self) -> str:
        return event_name(self.event_class, self.event_type) + (f" of {self.entity}" if self.entity else "")

    @property
    def error(self) -> str:
        return f"{self.error_class}: {self.message}" if self.message else self.error_class


class Transition(Answer):
    """A row of an entity's history: a transition, or an event that caused none."""

    at: Real
    seq: Whole | None = None
    from_state: str | None = None
    event_type: str | None = None
    to_state: str | None = None
    valid: bool | None = None
    error: str | None = None

    @property
    def what(self) -> str:
        """`NEW -> SUBMITTED on START`."""
        change = " -> ".join(each for each in (self.from_state, self.to_state) if each)
        return f"{change or 'no transition'} on {self.event_type or '?'}"


class Entity(Answer):
    """`/entities/{id}`."""

    id: str
    machine: str | None = None
    state: str | None = None
    since: Real | None = None
    history: Page[Transition]
    complete: bool = True


class Stack(Answer):
    """A sampled stack, and the number of samples with it."""

    count: Whole
    stack: list[Frame]


class Samples(Answer):
    """`/dispatchers/{name}/running?samples=N`: stacks, most frequent first."""

    stacks: list[Stack]
    samples: Whole
    idle: Whole = 0
    """Samples in which nothing ran."""


class RefusedLetter(Answer):
    """A dead letter that cannot be posted again."""

    letter: Whole
    reason: str


class Redelivered(Answer):
    """The answer to `POST /dispatchers/{name}/redeliver`. Letters in neither found no room."""

    posted: list[Whole]
    refused: list[RefusedLetter]


def event_name(event_class: str, event_type: str) -> str:
    """`JobEventType.START`, or the class alone if it has no types, as a mail's."""
    return f"{event_class}.{event_type}" if event_class and event_type else event_class or event_type or "?"
