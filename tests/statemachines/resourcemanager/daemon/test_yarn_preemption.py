"""A queue that is starved gets back what others have of its guarantee, from outside: notice, grace, end."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import Resource
from statemachines.simulation.workload import NodeSpec

from ..inner import EXIT_PREEMPTED
from .yarn_cluster import Master, Yarn, ask

pytestmark = pytest.mark.long

INTERVAL_MS, GRACE_MS = 3_000, 15_000
AT_ONCE = {"enabled": True, "total_preemption_per_round": 1, "natural_termination_factor": 1}


class Halves(Yarn):
    """A cluster of 10 with two queues of half of it each."""

    def __init__(self, preemption: dict[str, Any], **a: Any) -> None:
        """`a`: further keys of queue a."""
        names: tuple[tuple[str, dict[str, Any]], ...] = (("a", a), ("b", {}))
        queues = [{"name": name, "capacity": 50, "user_limit_factor": 10, **more} for name, more in names]
        share = {"maximum_am_resource_percent": 40}
        super().__init__(scheduler={"kind": "capacity", "queues": queues, "preemption": preemption, **share})
        self.register(NodeSpec("n1", Resource(10, 10)))

    def rich_and_starved(self) -> tuple[Master, Master]:
        """A master in `a` with 8 tasks; and a master in `b` that has nothing else, and wants 4."""
        rich, starved = self.submit_and_run(queue="a"), self.submit_and_run(queue="b")
        assert len(rich.get_running(*[ask()] * 8)) == 8
        assert starved.get(*[ask()] * 4) == []
        return rich, starved


def noticed(master: Master) -> list[str]:
    message = master.allocate().preemption
    return list(message.containers) if message is not None else []


def test_starved_queue_gets_its_guarantee_back_after_notice_and_grace() -> None:
    with Halves(AT_ONCE) as yarn:
        rich, starved = yarn.rich_and_starved()

        yarn.advance(INTERVAL_MS)
        message, again = rich.allocate().preemption, rich.allocate().preemption
        yarn.advance(GRACE_MS - 1)
        before = starved.get()
        yarn.advance(1)
        response, got = rich.allocate(), starved.get()

        assert message is not None
        assert (len(message.containers), message.resource.memory_mb) == (4, 4)
        assert (again, before) == (None, [])
        assert {(each.container, each.exit_status) for each in response.finished} == {
            (container, EXIT_PREEMPTED) for container in message.containers
        }
        assert len(got) == 4
        assert yarn.report(rich.app_id).usage.preempted_containers == 4
        assert set(message.containers) <= set(yarn.stopped)


def test_newest_containers_go_first_and_the_master_stays() -> None:
    with Halves(AT_ONCE) as yarn:
        rich, _ = yarn.rich_and_starved()
        live = sorted(each.container_id for each in yarn.clients.get_containers(rich.attempt))

        yarn.advance(INTERVAL_MS)

        assert noticed(rich) == live[:-5:-1]


@pytest.mark.parametrize("off", [{"enabled": False}, None], ids=["by default", "of the queue"])
def test_nothing_is_preempted_where_it_is_off(off: dict[str, Any] | None) -> None:
    with Halves(AT_ONCE, disable_preemption=True) if off is None else Halves(off) as yarn:
        rich, starved = yarn.rich_and_starved()

        yarn.advance(10 * GRACE_MS)

        assert (noticed(rich), starved.get()) == ([], [])


def test_master_may_release_others_instead() -> None:
    with Halves(AT_ONCE) as yarn:
        rich, starved = yarn.rich_and_starved()
        live = sorted(each.container_id for each in yarn.clients.get_containers(rich.attempt))
        yarn.advance(INTERVAL_MS)
        notice = noticed(rich)

        rich.allocate(releases=live[1:5])
        yarn.advance(10 * GRACE_MS)

        assert set(notice).isdisjoint(live[1:5])
        assert len(starved.get()) == 4
        assert yarn.report(rich.app_id).usage.preempted_containers == 0


def test_notice_is_void_once_the_need_has_gone() -> None:
    with Halves(AT_ONCE) as yarn:
        rich, starved = yarn.rich_and_starved()
        yarn.advance(INTERVAL_MS)
        first = noticed(rich)
        yarn.kill(starved.app_id)
        yarn.advance(2 * INTERVAL_MS)

        again = yarn.submit_and_run(queue="b")
        again.get(*[ask()] * 4)
        yarn.advance(GRACE_MS - INTERVAL_MS)
        second = noticed(rich)
        unharmed = yarn.report(rich.app_id).containers
        yarn.advance(GRACE_MS)

        assert len(first) == len(second) == 4  # told again
        assert (unharmed, len(again.get())) == (9, 4)


@pytest.mark.parametrize(("ignored", "rounds", "left"), [(0.1, [1, 1, 1, 1], 5), (0.2, [1, 1, 1, 0], 6)])
def test_each_round_takes_a_part_until_the_excess_is_small(ignored: float, rounds: list[int], left: int) -> None:
    with Halves({"enabled": True, "max_ignored_over_capacity": ignored}) as yarn:
        rich, starved = yarn.rich_and_starved()
        got = []

        for _ in range(4):
            yarn.advance(GRACE_MS + INTERVAL_MS)
            got.append(len(starved.get()))

        assert (got, yarn.report(rich.app_id).containers) == (rounds, left)


def test_masters_beyond_their_share_go_last_and_their_applications_go_on() -> None:
    with Halves(AT_ONCE, maximum_am_resource_percent=100) as yarn:
        masters = [yarn.submit_and_run(queue="a") for _ in range(8)]
        starved = yarn.submit_and_run(queue="b")
        (task,) = masters[0].get_running(ask())
        starved.get(*[ask()] * 4)
        yarn.advance(INTERVAL_MS)

        notices = [noticed(master) for master in masters]
        yarn.advance(GRACE_MS)

        masters_containers = [[master.container.entity] for master in masters if master.container is not None]
        assert notices == [[task.entity], [], [], [], [], *masters_containers[5:]]
        assert yarn.states(masters[7].app_id) == ("ACCEPTED", ["FAILED", "SCHEDULED"])
        assert len(starved.get()) == 4
