"""One run of a sweep: a replay in virtual time without a journal, measured while it runs, and its results."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Any

from dispatcher.mailbox import ManualClock
from pipeline.sweep.combinations import Combination
from pipeline.sweep.workloads import with_load, with_nodes
from statemachines.recorder import TransitionRecorder
from statemachines.resourcemanager import Replay
from statemachines.resourcemanager.machines.rmcontainer import CONTAINER_FINAL_STATES
from statemachines.resourcemanager.machines.states import FINAL_STATES
from statemachines.resourcemanager.records.resource import GPU_MILLI, Resource
from statemachines.simulation.workload import Workload

_MS_PER_S = 1000
_APPLICATION_ENDS = frozenset(state.name for state in FINAL_STATES)
_CONTAINER_ENDS = frozenset(state.name for state in CONTAINER_FINAL_STATES)


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """The result of one combination. Deterministic, except for `wall_s`.

    An application waits from its submission to its first container, which is its master's. A container, a master's
    included, waits from its request to its allocation. The turnaround of an application is the time from its submission
    to its end, if it finished. The makespan is the time from the first submission to the last end of an application or
    container; `*_used` are mean shares of the cluster's capacity over that time.
    """

    applications: int
    finished: int
    failed: int
    killed: int
    unfinished: int
    """Applications in no final state when no event was left: they wait for room that never becomes free."""
    never_placed: int
    """Applications that never got a container; they have no wait."""
    wait_mean_s: float | None
    """All waits are None if no application got a container."""
    wait_p50_s: float | None
    """Percentiles are interpolated between the two nearest waits."""
    wait_p95_s: float | None
    wait_max_s: float | None
    container_wait_mean_s: float | None
    """All of these are None if no container was allocated."""
    container_wait_p50_s: float | None
    container_wait_p95_s: float | None
    container_wait_max_s: float | None
    turnaround_mean_s: float | None
    """All of these are None if no application finished."""
    turnaround_p50_s: float | None
    turnaround_p95_s: float | None
    turnaround_max_s: float | None
    makespan_s: float | None
    """None if nothing has ended."""
    memory_used: float | None
    """All shares are from 0 to 1; None if the cluster lacks the resource, or there is no makespan."""
    vcores_used: float | None
    gpus_used: float | None
    containers: int
    """Allocated containers, including masters."""
    events: int
    failed_events: int
    """Events whose handler raised: do not trust this run."""
    wall_s: float = field(compare=False)


class RunRecorder(TransitionRecorder):
    """Counts transitions, and measures waits, turnarounds and resource use. Read it once the handler thread has ended.

    A container uses its resources from its allocation to its end. Of ended containers only sums are kept.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(lists_entities=False)
        self._now_ms = now_ms
        self._submitted: dict[str, int] = {}  # submission time of each application that has not ended
        self._waiting: set[str] = set()  # applications without a container
        self._taken: dict[str, tuple[int, Resource]] = {}  # by running container: allocation time and resources
        self._first_submission_ms: int | None = None
        self._last_end_ms: int | None = None
        self._used = [0, 0, 0]  # of ended containers, in the units of `used`
        self.containers: int = 0
        self.waits_ms: array[int] = array("q")
        """One per application with a container, in the order of their first containers."""
        self.container_waits_ms: array[int] = array("q")
        """One per allocated container, in the order of their allocations."""
        self.turnarounds_ms: array[int] = array("q")
        """One per finished application, in the order of their ends."""

    @property
    def span_ms(self) -> int | None:
        """From the first submission to the last end; None if nothing has ended."""
        if self._first_submission_ms is None or self._last_end_ms is None:
            return None
        return self._last_end_ms - self._first_submission_ms

    def used(self) -> tuple[int, int, int]:
        """Resource use until the last end: memory (MB), vcores and GPUs (thousandths), each times ms."""
        used = list(self._used)
        for since_ms, resource in self._taken.values():
            _add(used, resource, max(0, (self._last_end_ms or 0) - since_ms))
        return used[0], used[1], used[2]

    def post_transition(self, operand: Any, before: Enum, after: Enum, event: Any) -> None:
        super().post_transition(operand, before, after, event)
        if operand.machine == "RMContainer":
            self._container(operand, after._name_)
        elif operand.machine == "RMApp":
            self._application(operand.entity, before._name_, after._name_)

    def _application(self, application: str, before: str, after: str) -> None:
        if before == "NEW":
            now_ms = self._submitted[application] = self._now_ms()
            self._waiting.add(application)
            if self._first_submission_ms is None:
                self._first_submission_ms = now_ms
        if after in _APPLICATION_ENDS:
            self._last_end_ms = now_ms = self._now_ms()
            submitted_ms = self._submitted.pop(application, None)
            if submitted_ms is not None and after == "FINISHED":
                self.turnarounds_ms.append(now_ms - submitted_ms)

    def _container(self, container: Any, after: str) -> None:
        if after == "ALLOCATED":
            now_ms = self._now_ms()
            self.containers += 1
            self._taken[container.entity] = now_ms, container.request.resource
            self.container_waits_ms.append(now_ms - container.asked_ms)
            if container.application in self._waiting:
                self._waiting.remove(container.application)
                self.waits_ms.append(now_ms - self._submitted[container.application])
        elif after in _CONTAINER_ENDS:
            taken = self._taken.pop(container.entity, None)
            if taken is not None:
                since_ms, resource = taken
                self._last_end_ms = now_ms = self._now_ms()
                _add(self._used, resource, now_ms - since_ms)


def _add(used: list[int], resource: Resource, ms: int) -> None:
    used[0] += resource.memory_mb * ms
    used[1] += resource.vcores_milli * ms
    used[2] += resource.gpu_milli_total * ms


def run(workload: Workload, combination: Combination) -> SweepOutcome:
    """Replay the workload under the combination. Blocks; starts a handler thread, and ends it.

    Raises:
        ConfigError: the configuration is invalid; `combine` returns only valid ones.
        BaseException: the error that failed the handler thread.
    """
    changed = with_load(with_nodes(workload, combination.nodes), combination.load)
    clock = ManualClock()
    recorder = RunRecorder(clock.current_processing_time)
    replay = Replay(changed, combination.config, clock=clock, recorder=recorder)
    progress = replay.run()
    states = progress.applications_by_state
    ended = {name: states.get(name, 0) for name in ("FINISHED", "FAILED", "KILLED")}
    applications = len(workload.applications)
    span_ms = recorder.span_ms
    sizes = [each.capacity for each in changed.nodes]
    capacity = (
        sum(size.memory_mb for size in sizes),
        sum(size.vcores_milli for size in sizes),
        sum(size.gpus for size in sizes) * GPU_MILLI,
    )
    shares = [
        use / (size * span_ms) if size and span_ms else None
        for use, size in zip(recorder.used(), capacity, strict=True)
    ]
    return SweepOutcome(
        applications=applications,
        finished=ended["FINISHED"],
        failed=ended["FAILED"],
        killed=ended["KILLED"],
        unfinished=applications - sum(ended.values()),
        never_placed=applications - len(recorder.waits_ms),
        **_spread("wait", recorder.waits_ms),
        **_spread("container_wait", recorder.container_waits_ms),
        **_spread("turnaround", recorder.turnarounds_ms),
        makespan_s=None if span_ms is None else span_ms / _MS_PER_S,
        memory_used=shares[0],
        vcores_used=shares[1],
        gpus_used=shares[2],
        containers=recorder.containers,
        events=progress.events,
        failed_events=replay.manager.dispatcher.stats().failed,
        wall_s=progress.wall_s,
    )


def run_row(workload: Workload, combination: Combination) -> dict[str, Any]:
    """`run` as a row: `number`, `settings` (a dict) and `nodes` of the combination, the outcome's fields, and `error`.

    If the run fails, `error` holds the reason in one line and the outcome's fields are None.
    """
    row = {"number": combination.number, "settings": dict(combination.settings), "nodes": combination.nodes}
    try:
        outcome = run(workload, combination)
    except Exception as error:
        # A failed combination is a result of the sweep and does not stop the others.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return row | dict.fromkeys(each.name for each in fields(SweepOutcome)) | {"error": reason}
    return row | asdict(outcome) | {"error": None}


def _spread(name: str, values_ms: Iterable[int]) -> dict[str, Any]:
    """The fields of a SweepOutcome that describe these values."""
    in_order = sorted(values_ms)
    return {
        f"{name}_mean_s": sum(in_order) / len(in_order) / _MS_PER_S if in_order else None,
        f"{name}_p50_s": percentile_s(in_order, 0.5),
        f"{name}_p95_s": percentile_s(in_order, 0.95),
        f"{name}_max_s": percentile_s(in_order, 1.0),
    }


def percentile_s(sorted_ms: Sequence[int], share: float) -> float | None:
    """The percentile of sorted values, in seconds, interpolated as Spark's `percentile`; None without values."""
    if not sorted_ms:
        return None
    place = share * (len(sorted_ms) - 1)
    below = int(place)
    above = min(below + 1, len(sorted_ms) - 1)
    return (sorted_ms[below] + (sorted_ms[above] - sorted_ms[below]) * (place - below)) / _MS_PER_S
