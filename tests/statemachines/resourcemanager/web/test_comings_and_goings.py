"""Applications that come, go and are forgotten leave nothing in the daemon: not in its machines, not in its pages."""

from __future__ import annotations

import gc
import types
from collections import Counter

import pytest

from statemachines.resourcemanager import Resource
from statemachines.simulation.workload import ApplicationSpec, ContainerSpec, NodeSpec, Workload

from ...rings import ring_of_process
from ..inner import waits
from .front import BASE, Front, front, until
from .inner import texts

pytestmark = pytest.mark.long

KEPT = 10
FEW = 100
MANY = 900
SLOT = Resource(100, 100)
NODES = tuple(NodeSpec(f"n{number}", Resource(100_000, 100_000)) for number in range(2))
NOT_WALKED = (type, types.ModuleType, types.CodeType, types.FrameType)


def reachable(*roots: object) -> Counter[str]:
    """The objects that these hold, directly or not, by the names of their classes."""
    found: dict[int, object] = {}
    waiting = list(roots)
    while waiting:
        each = waiting.pop()
        if id(each) in found or isinstance(each, NOT_WALKED):
            continue
        found[id(each)] = each
        # A function holds its module, and so everything; what it holds of its own is in its closure.
        waiting += (each.__closure__ or ()) if isinstance(each, types.FunctionType) else gc.get_referents(each)
    return Counter(type(each).__qualname__ for each in found.values())


def finished(rm: Front) -> int:
    states = rm.manager.recorder.machines.get("RMApp")
    return states.entities().get("FINISHED", 0) if states is not None else 0


def come_and_go(rm: Front, count: int) -> None:
    """So many applications with a task each, while a client looks at them."""
    before = finished(rm)
    specs = tuple(ApplicationSpec(f"app {number}", 0, SLOT, (ContainerSpec(SLOT, 1),)) for number in range(count))
    rm.manager.bring(Workload("some", (), specs))

    def all_have_ended() -> bool:
        for path in (f"{BASE}/apps", "/cluster/apps", "/cluster/nodes", "/ops/v1/entities"):
            rm.http.get(path)
        return finished(rm) == before + count

    until(all_have_ended, "all applications have ended")
    until(lambda: len(rm.get("/apps").json()["apps"]["app"]) == KEPT, "all but the last ones are forgotten")
    until(lambda: not rm.manager.context.containers, "no container is left")


def held(rm: Front) -> Counter[str]:
    """What the daemon holds, with the handler thread at rest."""
    rm.manager.recorder.find_entity("any")  # the last transitions are then in the tables and in the ring
    return rm.manager.context.call(lambda: reachable(rm.manager, rm.door))


def test_not_one_object_is_left_of_each_application_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "KEPT", KEPT)  # what an application waited for is kept for seconds
    monkeypatch.setattr(texts, "SPARE", KEPT)  # or texts of hundreds that have gone are kept
    with ring_of_process(0), front(*NODES, max_completed_applications=KEPT, ops={"transitions_kept": 100}) as rm:
        come_and_go(rm, FEW)
        after_few = held(rm)

        come_and_go(rm, MANY)
        after_many = held(rm)

    grown = after_many - after_few
    # A few texts of applications that have gone are kept: of `SPARE` and a quarter, however many come.
    assert max(grown.values()) < MANY / 2, grown.most_common(10)
