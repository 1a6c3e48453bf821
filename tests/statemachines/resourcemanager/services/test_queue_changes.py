"""Changes of queues: what counts after each, what is refused, and what no longer fits the configuration at a start."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from statemachines.resourcemanager.services import queue_changes

from ..inner import InvalidRequestError, Origin, QueueChange
from ..scheduler.queue_cluster import scheduler_config

ANN = Origin(7, "ann")
P = {"name": "p", "capacity": 40, "queues": [{"name": "c", "capacity": 30}, {"name": "d", "capacity": 70}]}
LABELLED = {"accessible_node_labels": {"gpu": {"capacity": 100}}}


def configured(*queues: dict[str, Any], **scheduler: Any) -> Any:
    queues = queues or ({"name": "a", "capacity": 50, **LABELLED}, {"name": "b", "capacity": 10}, P)
    return scheduler_config(kind="capacity", queues=queues, **scheduler)


def by_path(config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(queues: tuple[Any, ...], above: str) -> None:
        for queue in queues:
            found[f"{above}.{queue.name}"] = queue
            walk(queue.queues, f"{above}.{queue.name}")

    walk(config.queues, "root")
    return found


def shown(changes: queue_changes.QueueChanges) -> list[tuple[str, str, object, object]]:
    return [(each.queue, each.key, each.value, each.configured) for each in changes.reports()]


def change(changes: queue_changes.QueueChanges, set: Any = None, add: Any = None, remove: Any = ()) -> dict[str, Any]:
    update = changes.update(set or {}, add or {}, remove, ANN)
    changes.take(update)
    return by_path(update.config)


def test_last_value_of_each_key_counts_until_it_is_given_up() -> None:
    changes = queue_changes.QueueChanges(configured())

    change(changes, {"root.a": {"capacity": "55"}, "b": {"capacity": 5, "state": "STOPPED"}})
    queues = change(changes, {"root.a": {"capacity": 45.5, "user_limit_factor": 2}, "p": {"capacity": 49.5}})

    found = {path: (queue.capacity, queue.state) for path, queue in queues.items() if path.count(".") == 1}
    assert found == {"root.a": (45.5, "RUNNING"), "root.b": (5, "STOPPED"), "root.p": (49.5, "RUNNING")}
    assert shown(changes) == [
        ("root.a", "capacity", 45.5, 50),
        ("root.a", "user_limit_factor", 2, 1),
        ("root.b", "capacity", 5, 10),
        ("root.b", "state", "STOPPED", "RUNNING"),
        ("root.p", "capacity", 49.5, 40),
    ]
    assert {each.origin for each in changes.reports()} == {ANN}
    change(changes, {"root.a": {"capacity": None}, "b": {"capacity": None}, "p": {"capacity": None}})
    changes.take(changes.give_up(["a"]))
    assert shown(changes) == [("root.b", "state", "STOPPED", "RUNNING")]


def test_queue_that_was_added_has_children_and_goes_once_it_is_stopped() -> None:
    changes = queue_changes.QueueChanges(configured())
    queues = change(
        changes, {"b": {"capacity": 4}}, {"root.new": {"capacity": 6}, "root.new.x": {"capacity": 100, "priority": 3}}
    )
    assert (queues["root.new.x"].priority, [each.name for each in queues["root.new"].queues]) == (3, ["x"])
    with pytest.raises(InvalidRequestError, match=r"^queue root\.new cannot be removed while it runs"):
        change(changes, remove=["new"])

    queues = change(changes, {"new": {"state": "STOPPED"}, "b": {"capacity": None}}, remove=["root.new"])

    assert "root.new" not in queues
    assert shown(changes) == []


def test_configured_queue_that_was_removed_can_be_added_again_as_it_was() -> None:
    changes = queue_changes.QueueChanges(configured())
    stopped: dict[str, Any] = {"d": {"state": "STOPPED", "capacity": 0}, "c": {"capacity": 100}}
    queues = change(changes, stopped, remove=["root.p.d"])
    assert [*queues] == ["root.a", "root.b", "root.p", "root.p.c"]
    assert shown(changes) == [("root.p.c", "capacity", 100, 30), ("root.p.d", "queue", "removed", None)]

    queues = change(changes, {"c": {"capacity": None}}, {"root.p.d": {}})

    assert (queues["root.p.d"].capacity, queues["root.p.d"].state) == (70, "RUNNING")
    assert shown(changes) == []


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({}, "the request changes nothing"),
        ({"set": {"nosuch": {"capacity": 1}}}, r"^queue nosuch does not exist$"),
        ({"set": {"root.a": {"capacity": 60}}}, r"^the queues below root: the capacities add up to 110; they must add"),
        ({"set": {"c": {"capacity": 60}}}, r"^the queues below root\.p: the capacities add up to 130"),
        ({"set": {"root.a": {"maximum_capacity": 20}}}, r"^queue root\.a, capacity: 50 is more than its maximum_capac"),
        (
            {"set": {"root.a": {"capacity": "half"}}},
            r"^queue root\.a, capacity: 'half' is not allowed; input should",
        ),
        (
            {"set": {"root.a": {"capacity": 200}}},
            r"^queue root\.a, capacity: 200 is not allowed; input should be",
        ),
        ({"set": {"root.a": {"name": "z"}}}, r"^queue root\.a, name: cannot be changed; expected one of capacity, max"),
        ({"set": {"root": {"capacity": 5}}}, r"^queue root, capacity: cannot be changed; expected acl_submit"),
        (
            {"set": {"a": {"accessible_node_labels.gpu.capacity": 5}}},
            r"^the queues below root: the capacities of label ",
        ),
        (
            {"set": {"c": {"accessible_node_labels.gpu.capacity": 100}}},
            r"^queue root\.p\.c, accessible_node_labels\.gpu",
        ),
        ({"add": {"root.a": {}}}, r"^queue root\.a exists already$"),
        ({"add": {"root.x.y": {}}}, r"^queue root\.x\.y cannot be added: queue root\.x does not exist"),
        ({"add": {"root.x y": {}}}, r"^queue 'root\.x y': not the name of a queue"),
        ({"add": {"root.a.z": {"capacity": 50}}}, r"^the queues below root\.a: the capacities add up to 50"),
        ({"add": {"root.p.a": {"capacity": 0}}}, r"^queue root\.p\.a, name: queue root\.a is also named a"),
        ({"remove": ["root"]}, r"^queue root cannot be removed$"),
        ({"remove": ["root.b"]}, r"^queue root\.b cannot be removed while it runs: stop it first"),
        ({"set": {"b": {"state": "STOPPED"}}, "remove": ["b"]}, r"^the queues below root: the capacities add up to 90"),
    ],
)
def test_request_that_is_wrong_names_the_queue_and_changes_nothing(request_: dict[str, Any], problem: str) -> None:
    changes = queue_changes.QueueChanges(configured())

    with pytest.raises(InvalidRequestError, match=problem):
        change(changes, **request_)

    assert shown(changes) == []


def stored(queue: str, key: str, value: Any) -> QueueChange:
    return QueueChange(queue, key, value, ANN)


@pytest.mark.parametrize(
    ("changes", "aside", "fits"),
    [
        ([("root.a", "capacity", 55), ("root.b", "capacity", 5)], {}, {"root.a": 55, "root.b": 5}),
        (
            [("root.gone", "state", "STOPPED"), ("root.b", "priority", 4), ("root.c", "queue", "removed")],
            {("root.gone", "state"): "there is no queue root.gone"},
            {"root.a": 50},
        ),
        (
            [
                *[("root.a", "capacity", 20), ("root.gone", "capacity", 30)],
                *[("root.p.c", "capacity", 50), ("root.p.d", "capacity", 50)],
            ],
            {("root.a", "capacity"): "no queue root.gone", ("root.gone", "capacity"): "no queue root.gone"},
            {"root.a": 50, "root.p.c": 50},
        ),
        ([("root.a", "capacity", 60)], {("root.a", "capacity"): "add up to 110"}, {"root.a": 50}),
        ([("root.a", "capacity", [])], {("root.a", "capacity"): "valid number"}, {"root.a": 50}),
        (
            [("root.x", "queue", "added"), ("root.x", "capacity", 5), ("root.x", "state", "STOPPED")],
            {
                ("root.x", "queue"): "add up to 105",
                ("root.x", "capacity"): "add up to 105",
                ("root.x", "state"): "no queue",
            },
            {"root.b": 10},
        ),
        (
            [("root.b", "default_lifetime_s", 9), ("root.b", "maximum_lifetime_s", 10), ("root.a", "capacity", 51)],
            {("root.a", "capacity"): "add up to 101"},
            {"root.b": 10},
        ),
    ],
    ids=["all fit", "queue is gone", "a share of a queue that is gone", "sum", "value", "added", "two of one kind"],
)
def test_stored_changes_that_do_not_fit_are_set_aside_and_kept(
    changes: list[tuple[str, str, Any]],
    aside: dict[tuple[str, str], str],
    fits: dict[str, float],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    found = queue_changes.QueueChanges(configured())

    config = found.restore([stored(*each) for each in changes])

    queues = by_path(config)
    assert {path: queues[path].capacity for path in fits} == fits
    problems = {(each.queue, each.key): each.problem for each in found.reports() if each.problem}
    assert problems.keys() == aside.keys()
    assert all(why in problems[key] for key, why in aside.items())
    assert sorted(found.to_store()) == sorted(stored(*each) for each in changes)
    assert ("set aside" in caplog.text) is bool(aside)


def test_one_change_that_does_not_fit_costs_few_checks_of_the_whole_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each changed queue cost one: with 300 of them, a start took seconds longer."""
    names = [f"q{number}" for number in range(64)]
    checks: list[object] = []
    found = queue_changes.QueueChanges(configured(*[{"name": name, "capacity": 100 / 64} for name in names]))
    check = queue_changes.check_scheduler_queues
    monkeypatch.setattr(queue_changes, "check_scheduler_queues", lambda config: checks.append(config) or check(config))

    found.restore([stored(f"root.{name}", "priority", 1) for name in (*names, "gone")])

    assert [each.queue for each in found.reports() if each.problem] == ["root.gone"]
    assert len(checks) < 16


def test_change_that_was_set_aside_counts_once_it_is_made_again_and_others_stay_aside() -> None:
    changes = queue_changes.QueueChanges(configured())
    changes.restore([stored("root.gone", "priority", 1), stored("root.a", "capacity", 60)])

    queues = change(changes, {"a": {"capacity": 55}, "b": {"capacity": 5}})

    assert queues["root.a"].capacity == 55
    assert [(each.queue, bool(each.problem)) for each in changes.reports()] == [
        ("root.a", False),
        ("root.b", False),
        ("root.gone", True),
    ]
    changes.take(changes.give_up(["root.gone"]))
    assert {each.queue for each in changes.reports()} == {"root.a", "root.b"}
    with pytest.raises(InvalidRequestError, match=r"^queue root\.gone has no changes to give up"):
        changes.give_up(["root.gone"])
    with pytest.raises(InvalidRequestError, match=r"add up to 95"):
        changes.give_up(["a"])
    assert changes.give_up(None) == (configured(), {}, {})


def test_fifo_scheduler_sets_all_changes_aside_and_takes_none() -> None:
    changes = queue_changes.QueueChanges(scheduler_config())
    config = changes.restore([stored("root.a", "state", "STOPPED")])

    assert config == scheduler_config()
    with pytest.raises(InvalidRequestError, match="FIFO"):
        changes.update({"root.default": {"state": "STOPPED"}}, {}, (), ANN)
    assert [each.problem for each in changes.reports()] == [
        "the FIFO scheduler has one queue, and nothing of it can be changed (scheduler.kind)"
    ]


def test_value_that_looks_like_a_place_in_the_file_is_named_in_the_error() -> None:
    """The place was looked up among the queues: IndexError."""
    with pytest.raises(
        InvalidRequestError, match=r"queue root\.a, default_node_label: scheduler\.queues\[99\] is not one"
    ):
        change(queue_changes.QueueChanges(configured()), {"root.a": {"default_node_label": "scheduler.queues[99]"}})
