"""What both state stores do: keep the last record of each application and attempt, and answer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
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


@pytest.fixture(params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    return Stores(request.param, tmp_path / "state.db")


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


def queue_changes(changes: Iterable[QueueChange]) -> Any:
    """All changes of queues, as the store keeps them."""
    return RMState().queue_changes._replace(changes=tuple(changes))


def set_by_hand(kind: str, *of: Any) -> RMStateStoreEvent:
    """A write of what an administrator set or gave up."""
    return RMStateStoreEvent(RMStateStoreEventType[kind], *of, notify=False)


def setting(kind: str, *values: st.SearchStrategy[Any]) -> st.SearchStrategy[RMStateStoreEvent]:
    return st.builds(partial(set_by_hand, kind), *values)


NODES, ANYTHING, ANN = st.sampled_from(["n1:1", "n\u00f6:1"]), st.just(""), Origin(5, "ann")
ORIGINS = st.sampled_from([None, ANN])
SIZES = st.sampled_from([Resource(1, 2), Resource(3, 4, gpus=5, others=(("fpga", 6),))])
DRAINS = {"n1": HostDrain(7, 8), "n\u00f6": HostDrain(9, None)}
HOSTS = [HostLists(excluded=("n4",)), HostLists(("n1", "n\u00f6"), ("n1", "n3"), DRAINS, {"n3": ANN}, ANN)]
QUEUES = st.builds(
    QueueChange, st.just("root.a"), st.just("key"), st.sampled_from([12.5, 7, "removed", True, None]), st.just(ANN)
)
WRITES = st.one_of(
    st.builds(store_app, st.integers(1, 3), diagnostics=st.text(max_size=3)),
    st.builds(update_app, st.integers(1, 3), st.booleans(), diagnostics=st.text(max_size=3)),
    st.builds(store_attempt, st.integers(1, 3), st.integers(1, 2), diagnostics=st.text(max_size=3)),
    st.builds(update_attempt, st.integers(1, 3), st.integers(1, 2), diagnostics=st.text(max_size=3)),
    st.builds(remove_app, st.integers(1, 3), st.just(2)),
    st.builds(remove_attempt, st.integers(1, 3), st.integers(1, 2)),
    setting("STORE_NODE_LABEL", NODES, st.builds(NodeLabel, st.sampled_from(["", "gpu", "\u00fc"]), ORIGINS)),
    setting("REMOVE_NODE_LABEL", NODES),
    setting("STORE_NODE_CAPACITY", NODES, st.builds(NodeCapacity, SIZES, ORIGINS)),
    setting("REMOVE_NODE_CAPACITY", NODES),
    setting("STORE_HOST_LISTS", ANYTHING, st.sampled_from(HOSTS)),
    setting("STORE_QUEUE_CHANGES", ANYTHING, st.lists(QUEUES, max_size=2).map(queue_changes)),
)


REPLACED = [
    *(
        set_by_hand("STORE_NODE_LABEL", node, NodeLabel(label, origin))
        for node, label, origin in [
            ("n1:1", "gpu", ANN),
            ("n\u00f6:1", "\u00fc", ANN),
            ("n1:1", "", None),
            ("n3:1", "gpu", ANN),
        ]
    ),
    *(
        set_by_hand("STORE_NODE_CAPACITY", node, NodeCapacity(Resource(memory_mb, 2), origin))
        for node, memory_mb, origin in [("n1:1", 1, ANN), ("n\u00f6:1", 1, ANN), ("n1:1", 3, None), ("n3:1", 1, ANN)]
    ),
    *(set_by_hand("STORE_HOST_LISTS", "", each) for each in HOSTS),
    *(
        set_by_hand("STORE_QUEUE_CHANGES", "", queue_changes([QueueChange("root.a", "key", value, ANN)]))
        for value in (12.5, "removed")
    ),
    set_by_hand("REMOVE_NODE_LABEL", "n3:1"),
    set_by_hand("REMOVE_NODE_CAPACITY", "n3:1"),
]
"""Of each kind, something is set, set anew and given up."""
ANSWERS = {
    "STORE_APP": "RMApp APP_NEW_SAVED",
    "UPDATE_APP": "RMApp APP_UPDATE_SAVED",
    "STORE_APP_ATTEMPT": "RMAppAttempt ATTEMPT_NEW_SAVED",
    "UPDATE_APP_ATTEMPT": "RMAppAttempt ATTEMPT_UPDATE_SAVED",
}


def modelled(events: list[RMStateStoreEvent]) -> RMState:
    """What is stored in the end, worked out by hand: the last record of each, and nothing of what was removed."""
    stored = RMState()
    applications = stored.applications
    for event in events:
        kind, entity = event.type.name, event.entity
        owner = "application" + entity.removeprefix("appattempt")[:7] if entity.startswith("appattempt") else entity
        if kind == "STORE_HOST_LISTS":
            stored.host_lists = event.state
        elif kind == "STORE_QUEUE_CHANGES":
            stored.queue_changes = event.state
        elif "_NODE_" in kind:
            records: dict[str, Any] = stored.node_labels if kind.endswith("LABEL") else stored.node_capacities
            records.pop(entity, None)
            if kind.startswith("STORE"):
                records[entity] = event.state
        elif kind in ("STORE_APP", "UPDATE_APP"):
            attempts = applications[entity].attempts if entity in applications else {}
            applications[entity] = RecoveredApplication(event.state, attempts)
        elif kind == "REMOVE_APP":
            applications.pop(entity, None)
        elif owner in applications:
            if kind == "REMOVE_APP_ATTEMPT":
                applications[owner].attempts.pop(entity, None)
            else:
                applications[owner].attempts[entity] = event.state
    return stored


@given(st.lists(WRITES, max_size=20), st.lists(WRITES, max_size=20))
def test_a_state_that_was_loaded_from_memory_is_left_as_it_was(
    before: list[RMStateStoreEvent], later: list[RMStateStoreEvent]
) -> None:
    store = Stores("memory", Path("unused")).open(Owner())
    for event in before:
        store.handle(event)
    loaded = store.load_state()

    for event in later:
        store.handle(event)

    assert loaded == modelled(before)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=tries(30), deadline=None)
@given(st.lists(WRITES, max_size=25), st.integers(1, 5), st.integers(0, 25))
@example(REPLACED, 1, 9)
@example(REPLACED, 5, 0)
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
    assert state == model
    assert list(state.applications) == list(model.applications)
    assert all(list(app.attempts) == sorted(app.attempts) for app in state.applications.values())
    assert owner.rest() == [f"{ANSWERS[event.type.name]} {event.entity}" for event in events if event.notify]
