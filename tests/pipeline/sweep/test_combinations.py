from __future__ import annotations

import pytest

from dispatcher import ConfigError
from statemachines.resourcemanager import Replay, Resource, ResourceManagerConfig
from statemachines.simulation.workload import NodeSpec, Workload

from .small import application, combined

SIZE = Resource(1024, 1000)


def workload_of_queues(*queues: str) -> Workload:
    nodes = tuple(NodeSpec(f"n{i}", SIZE) for i in range(4))
    return Workload("w", nodes, tuple(application(f"{i}", 0, 1, SIZE, queue=name) for i, name in enumerate(queues)))


def test_combinations_come_in_the_order_of_the_product(two_queues: Workload) -> None:
    found = combined(two_queues, "scheduler=fifo,capacity", "nodes=1.0,2.0", "max_attempts=3")

    assert [each.name for each in found] == [
        "scheduler=fifo, nodes=1.0, max_attempts=3",
        "scheduler=fifo, nodes=2.0, max_attempts=3",
        "scheduler=capacity, nodes=1.0, max_attempts=3",
        "scheduler=capacity, nodes=2.0, max_attempts=3",
    ]
    assert [(each.number, each.nodes, each.config.scheduler.kind) for each in found] == [
        (1, 1, "fifo"),
        (2, 2, "fifo"),
        (3, 1, "capacity"),
        (4, 2, "capacity"),
    ]
    assert {each.config.max_attempts for each in found} == {3}


def test_values_are_yaml_and_are_shown_as_yaml_in_one_line() -> None:
    queues = "scheduler.queues=[{name: a, capacity: 100}]"

    found = combined(workload_of_queues("a"), "nodes=1, 2", "scheduler=capacity", queues)

    assert [[value for _, value in each.settings] for each in found] == [
        [nodes, "capacity", '[{"name": "a", "capacity": 100}]'] for nodes in ("1", "2")
    ]


def test_other_settings_come_from_the_configuration_without_metrics_and_journal(two_in_a_row: Workload) -> None:
    config = ResourceManagerConfig.model_validate(
        {"simulation": {"am_register_delay_ms": 7, "heartbeat_interval_ms": 9}, "journal_path": "x"}
    )

    [found] = combined(two_in_a_row, "simulation.am_register_delay_ms=5", config=config)

    assert (found.config.simulation.am_register_delay_ms, found.config.simulation.heartbeat_interval_ms) == (5, 9)
    assert (found.config.metrics.enabled, found.config.journal_path) == (False, None)


EACH = ",".join(map(str, range(1, 41)))
# Bars part settings.
REFUSED: dict[str, list[str]] = {
    "nothing to compare: give --set KEY=V1,V2": [""],
    "expected KEY=V1,V2, such as scheduler=fifo,capacity": ["scheduler", "=fifo", "scheduler=", "scheduler= ", " = "],
    r"^--set scheduler=.*not YAML": ["scheduler=[fifo", "scheduler=fifo] ["],
    r"^--set (scheduler|nodes)=.*(not YAML|a value is empty)": ["scheduler=fifo,,capacity", "nodes=0.5,"],
    r"expected factors of the workload's nodes, such as 0\.5 or 1\.0, or": [
        f"nodes={value}" for value in ("0", "-1", "0.0", "half", "true", ".nan", ".inf", "[1]", "2000000")
    ],
    r"--set nodes=0\.5,1: a value with a decimal point is a factor": ["nodes=0.5,1"],
    r"a factor for the applications' arrival rate, from 0\.001 to 1000": [
        f"load={value}" for value in ("0", "-2", "fast", "true", "1001", ".nan")
    ],
    "fifo is given twice; give each value once": ["scheduler=fifo,capacity,fifo"],
    r"--set scheduler\.kind is given twice; give all its values at once": ["scheduler=fifo|scheduler.kind=capacity"],
    r"--set simulation and --set simulation\.heartbeat_interval_ms overlap": [
        "simulation={heartbeat_interval_ms: 5}|simulation.heartbeat_interval_ms=5"
    ],
    "a sweep serves no metrics": ["metrics.port=1,2"],
    "a sweep writes no journal": ["journal.buffer_rows=1,2", "journal_path=a,b"],
    "a sweep keeps its applications in memory": ["state_store.kind=memory,sqlite"],
    "the workload is read once, with the sizes of --config": ["simulation.workload_defaults.node_vcores=1,2"],
    "the nodes come from the workload": ["nodes.host=a,b"],
    "changes nothing here": ["name.first=a"],
    "40 x 40 = 1,600 combinations, and each is a whole replay; give fewer": [f"nodes={EACH}|load={EACH}"],
    "--set color=red: unknown key color; allowed here: ": ["color=red"],
    r"unknown key scheduler\.color; allowed here: ": ["scheduler.color=red"],
    r"--set scheduler=lifo: scheduler\.kind: 'lifo' is not allowed; input should be 'fifo'": ["scheduler=fifo,lifo"],
    r"--set simulation\.am_register_delay_ms=-1: simulation\.am_regis": ["simulation.am_register_delay_ms=1,-1"],
    r"--set max_attempts=\[1, 2\]: max_attempts": ["max_attempts=[1,2]"],
    "max_attempts: ": ["max_attempts.most=1"],
    r"nodes=0\.5 and nodes=0\.51 give the same run; leave one of them out": ["nodes=0.5,0.51"],
    r"load=2 and load=2\.0 give the same run": ["load=2,2.0"],
    "4,000,000 nodes; give up to 1,000,000": ["nodes=1000000.0"],
    r"^--set scheduler=capacity --set scheduler\.queues=.*capacities": [
        "scheduler=capacity|scheduler.queues=[{name: a, capacity: 10}]"
    ],
}


@pytest.mark.parametrize(("problem", "settings"), [(each, one) for each, given in REFUSED.items() for one in given])
def test_settings_that_cannot_be_run_are_refused_in_one_line(problem: str, settings: str) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        combined(workload_of_queues("a"), *filter(None, settings.split("|")))

    assert "\n" not in str(error.value)


def test_a_key_below_a_value_of_the_configuration_is_refused(two_in_a_row: Workload) -> None:
    config = ResourceManagerConfig.model_validate({"scheduler": {"queues": [{"name": "a"}]}})

    with pytest.raises(ConfigError, match=r"scheduler\.queues has no keys below it; give its value as a whole"):
        combined(two_in_a_row, "scheduler.queues.a=1", config=config)


def test_the_capacity_scheduler_gets_the_queues_of_the_workload() -> None:
    [found] = combined(workload_of_queues("a", "a", "a", "b"), "scheduler=capacity")

    # Half in equal parts (25 each), half by applications (37.5 and 12.5).
    assert [(queue.name, queue.capacity) for queue in found.config.scheduler.queues] == [("a", 62.5), ("b", 37.5)]
    assert found.config.scheduler.maximum_am_resource_percent == 100


def test_a_replay_and_a_sweep_derive_the_same_queues() -> None:
    """A replay gave the capacity scheduler one queue named default, and all applications of other queues failed."""
    workload = workload_of_queues("a", "root.x.b", "x.c", "a")
    config = ResourceManagerConfig.model_validate({"scheduler": {"kind": "capacity"}, "metrics": {"enabled": False}})

    [of_sweep] = combined(workload, "scheduler=capacity")
    of_replay = Replay(workload, config)

    assert of_replay.manager.settings.scheduler == of_sweep.config.scheduler
    assert of_sweep.has_derived_queues
    assert of_replay.derived_queues == of_sweep.config.scheduler.queues


def test_queues_and_shares_that_are_configured_stay(two_queues: Workload) -> None:
    config = ResourceManagerConfig.model_validate(
        {"scheduler": {"queues": [{"name": "a", "capacity": 60}, {"name": "b", "capacity": 40}]}}
    )

    [found] = combined(two_queues, "scheduler=capacity", config=config)
    [percent] = combined(two_queues, "scheduler=capacity", "scheduler.maximum_am_resource_percent=30")

    assert [queue.capacity for queue in found.config.scheduler.queues] == [60, 40]
    assert found.config.scheduler.maximum_am_resource_percent == 10
    assert percent.config.scheduler.maximum_am_resource_percent == 30


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("fifo", ["max_attempts=3"]),
        ("capacity", ["scheduler=fifo"]),
        (None, ["scheduler.queues=[{name: a}]"]),
        (None, ["scheduler=fifo,capacity", "scheduler.queues=[{name: a}]"]),
    ],
)
def test_queues_that_the_fifo_scheduler_ignores_are_refused(
    two_queues: Workload, kind: str | None, settings: list[str]
) -> None:
    """A replay and the daemon refused them, and a sweep ran without them."""
    scheduler = {"kind": kind, "queues": [{"name": "a"}]} if kind is not None else {}
    config = ResourceManagerConfig.model_validate({"scheduler": scheduler})

    with pytest.raises(
        ConfigError, match=rf"^--set {settings[0].partition('=')[0]}.*: scheduler\.kind fifo has one queue"
    ):
        combined(two_queues, *settings, config=config)


def test_the_queues_of_the_configuration_may_be_for_one_of_two_schedulers(two_queues: Workload) -> None:
    config = ResourceManagerConfig.model_validate({"scheduler": {"kind": "capacity", "queues": [{"name": "a"}]}})

    kinds = [each.config.scheduler.kind for each in combined(two_queues, "scheduler=fifo,capacity", config=config)]

    assert kinds == ["fifo", "capacity"]


def test_queue_names_with_dots_are_paths() -> None:
    [found] = combined(workload_of_queues("root.x.a", "root.x.b", "c", "x.a"), "scheduler=capacity")

    queues = found.config.scheduler.queues
    assert [(queue.name, queue.capacity) for queue in queues] == [("x", 62.5), ("c", 37.5)]
    assert [queue.name for queue in queues[0].queues] == ["a", "b"]


@pytest.mark.parametrize("names", [("a", "a.b"), ("a.b", "a"), ("a b",), ("a.",), ("a..b",)])
def test_queue_names_that_make_no_tree_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(
        ConfigError, match=r"is not valid for the capacity scheduler: .*set scheduler\.queues in the file"
    ):
        combined(workload_of_queues(*names), "scheduler=capacity")
