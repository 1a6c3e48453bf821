"""What the incidents share: each is a daemon in trouble, to be looked at.

`python -m tests.dispatcher.incidents.flood` runs one until Ctrl-C, and prints where to look.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from dispatcher.ops import OpsDoor
from dispatcher.web import WebConfig

DISPATCHER = "orders"
WAIT_S = 60.0


class Order(Enum):
    PLACED = auto()
    PAID = auto()
    SHIPPED = auto()


@dataclass(frozen=True, slots=True)
class OrderEvent:
    """About one order. Events with one `lock_key` are handled one after another."""

    type: Order
    entity: str
    lock_key: str | None = None


@dataclass(frozen=True)
class Shown:
    """What a person on call has to find."""

    problem: str
    event: str
    waits: str
    """A regular expression."""
    dispatcher: str = DISPATCHER


Incident = Callable[[Path], AbstractContextManager[Shown]]


def run(incident: Incident) -> None:
    """Until Ctrl-C."""
    door = OpsDoor(name="shop", web=WebConfig(port=0))
    with tempfile.TemporaryDirectory() as folder, door, incident(Path(folder)) as shown:
        print(f"{door.host.url}/ shows {shown}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
