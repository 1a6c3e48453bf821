"""How long the pages of 100,000 entities take: the list, of one state, of the common one, and by a prefix."""

from __future__ import annotations

import time
import urllib.request
from enum import Enum
from typing import Any

from measure import Figures, Settings, Spread, print_table

from dispatcher.ops import OpsDoor
from dispatcher.web import WebConfig
from statemachines import StateMachineFactory, TransitionRecorder

QUERIES = {
    "all": "",
    "in a rare state": "?state=UP",
    "in the common state": "?state=NEW",
    "by prefix": "?prefix=t_09",
}


class S(Enum):
    NEW = 1
    UP = 2


class E(Enum):
    START = 1


FACTORY: StateMachineFactory[Any, Any] = StateMachineFactory(S.NEW).add_transition(S.NEW, S.UP, E.START)


class Thing:
    machine = "Thing"

    def __init__(self, recorder: TransitionRecorder, number: int) -> None:
        self.entity = f"t_{number:06}"
        self.state_machine = FACTORY.make(self, listener=recorder)


def pages(settings: Settings) -> Figures:
    recorder, count = TransitionRecorder(), settings.count(100_000)
    things = [Thing(recorder, number) for number in range(count)]
    for thing in things[:: count // 10]:
        thing.state_machine.do_transition(E.START, None)
    taken: dict[str, list[float]] = {name: [] for name in QUERIES}
    with OpsDoor(web=WebConfig(port=0, unix_socket=False), name="bench") as door:
        for _ in range(11):
            for name, query in QUERIES.items():
                began_s = time.perf_counter()
                with urllib.request.urlopen(f"{door.host.url}/entities{query}") as answer:
                    assert b"</html>" in answer.read(), query
                taken[name].append(1000 * (time.perf_counter() - began_s))
    spreads = {f"entities {name}": Spread.of(ms[1:]) for name, ms in taken.items()}
    print_table(f"Pages of {count:,} entities, in ms", spreads, digits=0)
    return {"ops-pages.slowest": max(sorted(ms[1:])[5] for ms in taken.values())}
