"""What both state stores do: keep the last record of each application and attempt, and answer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemachines.resourcemanager import Resource

from ....kit import tries
from ..inner import (
    HostDrain,
    HostLists,
    NodeCapacity,
    NodeLabel,
    Origin,
    QueueChange,
    RecoveredApplication,
    RMState,
    RMStateStoreEvent,
    RMStateStoreEventType,
)
from ..stores import (
    Owner,
    Stores,
    app_id,
    app_record,
    applications_in,
    attempt_id,
    attempt_record,
    copy_of,
    remove_app,
    remove_attempt,
    store_app,
    store_attempt,
    update_app,
    update_attempt,
)

KINDS = ["memory", "sqlite"]
ANN = Origin(5, "ann")


@pytest.fixture(params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    return Stores(request.param, tmp_path / "state.db")


def queue_changes(changes: Sequence[QueueChange]) -> Any:
    """All changes of queues, as the store keeps them."""
    return RMState().queue_changes._replace(changes=tuple(changes))


def written(stores: Stores, *events: RMStateStoreEvent) -> RMState:
    """What the next resource manager finds after these writes."""
    store = stores.open(Owner())
    for event in events:
        store.handle(event)
    stores.close(store)
    return found(stores)


def found(stores: Stores) -> RMState:
    store = stores.open(Owner())
    try:
        return store.load_state()
    finally:
        stores.close(store)


def test_last_label_of_each_node_is_kept(stores: Stores) -> None:
    labels = [("n1:1", "gpu"), ("n2:1", "gpu"), ("n1:1", ""), ("n\u00f6:1", "\u00fc"), ("n3:1", "gpu"), ("n3:1", None)]

    state = written(
        stores,
        *[
            RMStateStoreEvent(RMStateStoreEventType.REMOVE_NODE_LABEL, node, notify=False)
            if label is None
            else RMStateStoreEvent(RMStateStoreEventType.STORE_NODE_LABEL, node, NodeLabel(label, ANN), notify=False)
            for node, label in labels
        ],
    )

    assert state.node_labels == {node: NodeLabel(label, ANN) for node, label in labels[1:-2]}


def test_last_capacity_of_each_node_and_the_last_changes_of_hosts_and_queues_are_kept(stores: Stores) -> None:
    small, large = Resource(1, 2), Resource(3, 4, gpus=5, others=(("fpga", 6),))
    drains = {"n1": HostDrain(7, 8), "n2": HostDrain(9, None)}
    lists = HostLists(("n1", "n\u00f6"), ("n1", "n2", "n3"), drains, {"n3": ANN}, ANN)
    changes = [QueueChange("root.a", "capacity", 12.5, ANN), QueueChange("root.b", "queue", "removed", ANN)]
    changes += [QueueChange("root", "maximum_applications", 7, ANN), QueueChange("root.a", "x", True, Origin(1, ""))]
    writes = [("NODE_CAPACITY", node, NodeCapacity(size, ANN)) for node, size in (("n1:1", small), ("n2:1", small))]
    writes += [("NODE_CAPACITY", "n1:1", NodeCapacity(large)), ("NODE_CAPACITY", "n3:1", NodeCapacity(small, ANN))]

    state = written(
        stores,
        *[RMStateStoreEvent(RMStateStoreEventType[f"STORE_{kind}"], *of, notify=False) for kind, *of in writes],
        RMStateStoreEvent(RMStateStoreEventType.REMOVE_NODE_CAPACITY, "n3:1", notify=False),
        *[
            RMStateStoreEvent(RMStateStoreEventType.STORE_QUEUE_CHANGES, "queues", queue_changes(each), notify=False)
            for each in (changes[:1], changes)
        ],
        *[
            RMStateStoreEvent(RMStateStoreEventType.STORE_HOST_LISTS, "hosts", each, notify=False)
            for each in (HostLists(excluded=("n4",)), lists)
        ],
    )

    assert state.node_capacities == {"n1:1": NodeCapacity(large), "n2:1": NodeCapacity(small, ANN)}
    assert (state.host_lists, state.queue_changes) == (lists, queue_changes(changes))


def test_write_is_confirmed_once_it_is_kept(stores: Stores, tmp_path: Path) -> None:
    """A copy of the file at that moment, as a power cut would leave it, has the write."""
    kept: list[Any] = []
    copy = tmp_path / "copy"
    copy.mkdir()

    def look(number: int) -> None:
        path = tmp_path / "state.db"
        kept.append((number, applications_in(copy_of(path, copy)) if path.exists() else None))

    store = stores.open(Owner())
    store.handle(store_app(1))
    event = update_app(1, notify=False, launch_ms=5)
    event.on_stored = lambda: look(1)
    store.handle(event)
    stores.close(store)

    assert kept in ([(1, [app_id(1)])], [(1, None)])
    assert found(stores).applications[app_id(1)].data.launch_ms == 5


def test_loaded_state_does_not_change_with_later_writes(stores: Stores) -> None:
    written(stores, store_app(1), store_attempt(1))
    owner = Owner()
    store = stores.open(owner)
    loaded = store.load_state()

    for event in (update_app(1, diagnostics="later"), store_attempt(1, 2), store_app(2)):
        store.handle(event)
    owner.next_answers(3)
    stores.close(store)

    assert loaded.applications == {app_id(1): RecoveredApplication(app_record(1), {attempt_id(1): attempt_record(1)})}


def test_epoch_counts_the_resource_managers(stores: Stores) -> None:
    epochs = []
    for _ in range(3):
        store = stores.open(Owner())
        epochs.append(store.get_and_increment_epoch())
        stores.close(store)

    assert epochs == [0, 1, 2]


WRITES = st.one_of(
    st.builds(store_app, st.integers(1, 3), diagnostics=st.text(max_size=3)),
    st.builds(update_app, st.integers(1, 3), st.booleans(), diagnostics=st.text(max_size=3)),
    st.builds(store_attempt, st.integers(1, 3), st.integers(1, 2), diagnostics=st.text(max_size=3)),
    st.builds(update_attempt, st.integers(1, 3), st.integers(1, 2), diagnostics=st.text(max_size=3)),
    st.builds(remove_app, st.integers(1, 3), st.just(2)),
    st.builds(remove_attempt, st.integers(1, 3), st.integers(1, 2)),
)


ANSWERS = {
    "STORE_APP": "RMApp APP_NEW_SAVED",
    "UPDATE_APP": "RMApp APP_UPDATE_SAVED",
    "STORE_APP_ATTEMPT": "RMAppAttempt ATTEMPT_NEW_SAVED",
    "UPDATE_APP_ATTEMPT": "RMAppAttempt ATTEMPT_UPDATE_SAVED",
}


def modelled(events: list[RMStateStoreEvent]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """What is stored in the end, worked out by hand: the last record of each, and nothing of what was removed."""
    applications: dict[str, tuple[Any, dict[str, Any]]] = {}
    for event in events:
        kind, entity = event.type.name, event.entity
        owner = "application" + entity.removeprefix("appattempt")[:7] if entity.startswith("appattempt") else entity
        if kind in ("STORE_APP", "UPDATE_APP"):
            applications[entity] = (event.state, applications[entity][1] if entity in applications else {})
        elif kind == "REMOVE_APP":
            applications.pop(entity, None)
        elif owner in applications:
            if kind == "REMOVE_APP_ATTEMPT":
                applications[owner][1].pop(entity, None)
            else:
                applications[owner][1][entity] = event.state
    return applications


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=tries(30), deadline=None)
@given(st.lists(WRITES, max_size=25), st.integers(1, 5), st.integers(0, 25))
def test_any_sequence_of_writes_leaves_their_net_effect(
    kind: str, events: list[RMStateStoreEvent], batch_size: int, reopened_after: int
) -> None:
    owner = Owner()
    with tempfile.TemporaryDirectory() as folder:
        stores = Stores(kind, Path(folder) / "state.db")
        for part in filter(None, (events[:reopened_after], events[reopened_after:])):
            store = stores.open(owner, **({"batch_size": batch_size} if kind == "sqlite" else {}))
            for event in part:
                store.handle(event)
            stores.close(store)

        state = found(stores)

    model = modelled(events)
    assert {app: (a.data, a.attempts) for app, a in state.applications.items()} == model
    assert list(state.applications) == list(model)
    assert all(list(app.attempts) == sorted(app.attempts) for app in state.applications.values())
    assert owner.rest() == [f"{ANSWERS[event.type.name]} {event.entity}" for event in events if event.notify]
