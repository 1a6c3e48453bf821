"""Why an application or an ask waits, for reports. Immutable: any thread may read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from statemachines.resourcemanager.records.resource import GPU_MILLI, Resource
from statemachines.resourcemanager.scheduler.core.amounts import Amounts

GPUS = "gpus"
"""Counts devices, where `gpu_milli` sums up thousandths."""


class WaitCause(Enum):
    """What would have to change; the value says it in general."""

    NODE = "it waits for a node; the report does not say why"
    NO_ROOM = "no node has room"
    NEVER_FITS = "no node could ever take it"
    NO_NODES = "there are no nodes in use"
    PLACEMENT = "the nodes that it requires do not exist, or it has blacklisted them"
    DRAINING = "the nodes that could take it are being decommissioned"
    RESERVED = "a node is reserved"
    LOCALITY = "it waits for a node that it prefers"
    HEARTBEAT = "it waits for a node's heartbeat"
    PARTITION = "its queue may not use the partition"
    QUEUE_LIMIT = "its queue is at its limit"
    USER_LIMIT = "its user is beyond the limit"
    AM_LIMIT = "masters already use their share of the queue"
    USER_AM_LIMIT = "the user's masters already use their share of the queue"
    QUEUE_CLOSED = "the queue does not accept it"
    STORING = "its submission or its attempt is being stored"
    SCHEDULING = "the scheduler has not taken it yet"
    MASTER_STARTING = "its master has not registered yet"
    ENDED = "it has ended"


class WaitReason(NamedTuple):
    """The cause in one sentence, and the names and numbers in it."""

    cause: WaitCause
    sentence: str
    queue: str | None = None  # path
    user: str | None = None
    node: str | None = None  # id: the closest, the reserved one, or the one with room
    partition: str = ""
    resource: str | None = None  # the type that is short, as in amounts.py; or `gpus`
    needed: int | None = None  # of that type, by the ask
    available: int | None = None  # of that type, on the node or up to the limit

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class WaitingAsk:
    """The pending asks of one application with the same size, priority and requirements: they wait for the same."""

    resource: Resource
    count: int
    priority: int
    """Lower is served first, within the application."""
    partition: str
    hosts: tuple[str, ...]
    """Preferred or required by some of them, sorted."""
    since_ms: int
    """When the first of them was made, Unix ms."""
    reason: WaitReason

    @property
    def sentence(self) -> str:
        return self.reason.sentence


def quantity(type_: str, amount: int) -> str:
    """
    >>> [quantity("memory_mb", 61440), quantity("vcores_milli", 1000), quantity("gpu_milli", 1500), quantity("fpga", 2)]
    ['61,440 MB', '1 vcore', '1.5 GPUs', '2 fpga']
    """
    if type_ == "memory_mb":
        return f"{amount:,} MB"
    if type_ in ("vcores_milli", "gpu_milli"):
        number, noun = f"{amount / 1000:,.10g}", "vcore" if type_ == "vcores_milli" else "GPU"
    elif type_ == GPUS:
        number, noun = f"{amount:,}", "GPU"
    else:
        return f"{amount:,} {type_}"
    return f"{number} {noun}" if number == "1" else f"{number} {noun}s"


def quantities(amounts: Iterable[tuple[str, int]]) -> str:
    """
    >>> quantities([("memory_mb", 2048), ("vcores_milli", 2000), ("gpus", 1)])
    '2,048 MB, 2 vcores and 1 GPU'
    """
    texts = [quantity(*amount) for amount in amounts]
    return " and ".join([*([", ".join(texts[:-1])] if texts[1:] else []), *texts[-1:]]) or "nothing"


def device_share(resource: Resource) -> str:
    """Which part of each GPU it needs, if not all."""
    return f" with {resource.gpu_milli / GPU_MILLI:g} free each" if resource.gpu_milli != GPU_MILLI else ""


def missing(used: dict[str, int], more: Amounts, limit: dict[str, int]) -> tuple[str, int] | None:
    """The first type, and its amount in `more`, that would exceed the limit; or one that exceeds it already (0)."""
    for type_, amount in more:
        if used.get(type_, 0) + amount > limit.get(type_, 0):
            return type_, amount
    for type_, amount in used.items():
        if amount > limit.get(type_, 0):
            return type_, 0
    return None
