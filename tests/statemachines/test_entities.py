"""Entities: a handler that finds, makes and forgets them, and restores them from the journal."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatcher import (
    AsyncDispatcher,
    JournalConfig,
    JournalError,
    JournalWriter,
    MultiDispatcher,
    PartitionedJournal,
)
from dispatcher.journal import TRANSITIONS, read_rows
from statemachines import (
    Entities,
    StateMachineFactory,
    TransitionRecorder,
    UnknownEntityError,
)

from ..kit.coroutines import running_loop


class OrderState(Enum):
    NEW = 1
    PLACED = 2
    PAID = 3
    DELIVERED = 4


class OrderType(Enum):
    PLACED = 1
    PAID = 2
    REMINDED = 3
    DELIVERED = 4


class Other(Enum):
    NEW = 1


@dataclass
class OrderEvent:
    type: OrderType
    entity: Any

    @property
    def lock_key(self) -> Any:
        return self.entity


class Order:
    machine = "Order"

    def __init__(self, entity: str, state: OrderState | None = None) -> None:
        self.entity = entity
        self.made_in = state
        self.reminders = 0

    def remind(self, event: OrderEvent) -> None:
        self.reminders += 1

    def refuse(self, event: OrderEvent) -> None:
        raise RuntimeError("no such customer")


S, E = OrderState, OrderType
FACTORY: StateMachineFactory[OrderState, Order] = (
    StateMachineFactory[OrderState, Order](S.NEW, "Order")
    .add_transition(S.NEW, S.PLACED, E.PLACED)
    .add_transition(S.PLACED, S.PAID, E.PAID)
    .add_transition(S.PLACED, S.PLACED, E.REMINDED, Order.remind)
    .add_transition(S.PAID, S.DELIVERED, E.DELIVERED)
)
REFUSING = FACTORY.add_transition(S.NEW, S.PLACED, E.PLACED, Order.refuse)


def orders(recorder: TransitionRecorder | None = None, **options: Any) -> Entities[OrderState, Order]:
    options = {"ends": {S.DELIVERED}, **options}
    return Entities(options.pop("factory", FACTORY), Order, recorder=recorder or TransitionRecorder(), **options)


def send(entities: Entities[OrderState, Order], entity: str, *types: OrderType) -> list[Any]:
    return [entities.handle(OrderEvent(type, entity)) for type in types]


def shop(
    journal: JournalWriter, *, events: type = OrderEvent, **options: Any
) -> tuple[Entities[OrderState, Order], AsyncDispatcher]:
    """Entities and a dispatcher on a journal; nothing is restored yet."""
    entities = orders(TransitionRecorder(journal), journal=journal, **options)
    dispatcher = AsyncDispatcher(name="shop", journal=journal)
    dispatcher.register(OrderType, entities, events=events)
    return entities, dispatcher


def write_ahead(path: Path) -> JournalWriter:
    return JournalWriter(path, JournalConfig(write_ahead=True))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


class Region(str, Enum):  # noqa: UP042 - unlike a StrEnum's, the text of a member is not its value
    EU = "eu"


@dataclass
class RegionalEvent(OrderEvent):
    entity: Region


# -- a handler -------------------------------------------------------------------------------------------------------


def test_an_event_that_the_initial_state_accepts_begins_its_entity() -> None:
    entities = orders()

    states = send(entities, "order_1", E.PLACED, E.PAID)

    assert states == [S.PLACED, S.PAID]
    assert (list(entities), len(entities), "order_1" in entities) == (["order_1"], 1, True)
    assert entities.state("order_1") is S.PAID


def test_get_returns_what_make_returned() -> None:
    made: list[Order] = []
    entities = Entities(
        FACTORY,
        lambda *about: made.append(Order(*about)) or made[-1],
        recorder=TransitionRecorder(),
        ends={S.DELIVERED},
    )

    send(entities, "order_1", E.PLACED, E.REMINDED)

    assert entities.get("order_1") is made[0]
    assert (made[0].made_in, made[0].reminders, len(made)) == (None, 1, 1)
    assert (entities.get("order_2"), entities.state("order_2")) == (None, None)


def test_an_entity_is_forgotten_in_a_state_in_which_it_ends() -> None:
    recorder = TransitionRecorder()
    entities = orders(recorder)

    send(entities, "order_1", E.PLACED, E.PAID, E.DELIVERED)

    assert len(entities) == 0
    assert recorder.find_entity("order_1") == []
    assert recorder.machines["Order"].kept_entities() == {"NEW": 0, "PLACED": 0, "PAID": 0, "DELIVERED": 0}


def test_ends_that_the_recorder_knows_as_well_leave_nothing_behind() -> None:
    """The recorder heard twice of each entity that had ended, and kept the second one until it was read."""
    recorder = TransitionRecorder(ends={"Order": {S.DELIVERED}})
    entities = orders(recorder)

    for number in range(100):
        send(entities, f"order_{number}", E.PLACED, E.PAID, E.DELIVERED)

    tables: Any = recorder._entities
    recorder._log.look()
    assert tables._changes["Order"].last == {}


def test_an_event_for_an_unknown_entity_fails_and_says_what_would_begin_one() -> None:
    entities = orders()

    with pytest.raises(UnknownEntityError) as raised:
        send(entities, "order_7", E.PAID)

    assert str(raised.value) == (
        "Order order_7: there is no such entity, and PAID does not begin one (only PLACED). It has ended, or was never "
        "begun. Pass `on_unknown` to handle such events."
    )
    assert (raised.value.machine, raised.value.entity, raised.value.event.type) == ("Order", "order_7", E.PAID)
    assert len(entities) == 0


def test_events_for_unknown_entities_go_to_on_unknown() -> None:
    late: list[OrderEvent] = []
    entities = orders(on_unknown=lambda event: late.append(event) or "dropped")

    assert send(entities, "order_7", E.PAID) == ["dropped"]
    assert [event.entity for event in late] == ["order_7"]


def test_begins_narrows_the_events_that_begin_an_entity() -> None:
    factory = FACTORY.add_transition(S.NEW, S.PAID, E.PAID)
    entities = orders(factory=factory, begins={E.PLACED})

    with pytest.raises(UnknownEntityError, match=r"PAID does not begin one \(only PLACED\)"):
        send(entities, "order_1", E.PAID)


def test_an_entity_whose_first_transition_fails_is_not_kept() -> None:
    """The journal has no transition of it, so it would not come back either."""
    recorder = TransitionRecorder()
    entities = orders(recorder, factory=REFUSING)

    with pytest.raises(RuntimeError, match="no such customer"):
        send(entities, "order_1", E.PLACED)

    assert len(entities) == 0
    assert recorder.find_entity("order_1") == []


def test_an_entity_is_kept_if_a_listener_fails_after_its_first_transition() -> None:
    """The transition stands, and is in the journal."""

    class Failing(TransitionRecorder):
        def post_transition(self, operand: Any, before: Enum, after: Enum, event: Any) -> None:
            raise RuntimeError("no room")

    entities = orders(Failing())

    with pytest.raises(RuntimeError, match="no room"):
        send(entities, "order_1", E.PLACED)

    assert entities.state("order_1") is S.PLACED


def test_an_entity_that_its_own_hook_ends_is_forgotten_once() -> None:
    recorder = TransitionRecorder()
    factory = FACTORY.add_transition(S.PAID, S.DELIVERED, E.REMINDED).add_transition(
        S.PAID, S.DELIVERED, E.DELIVERED, lambda order, event: entities.handle(OrderEvent(E.REMINDED, order.entity))
    )
    entities = orders(recorder, factory=factory)

    send(entities, "order_1", E.PLACED, E.PAID, E.DELIVERED)

    assert recorder.machines["Order"].forgotten == {"DELIVERED": 1}


def test_a_hook_may_send_another_entity_an_event() -> None:
    def pass_on(order: Order, event: OrderEvent) -> None:
        if order.entity == "order_1":
            entities.handle(OrderEvent(E.PLACED, "order_2"))

    entities = orders(factory=FACTORY.add_transition(S.NEW, S.PLACED, E.PLACED, pass_on))

    send(entities, "order_1", E.PLACED)

    assert list(entities) == ["order_1", "order_2"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ends": {S.NEW}}, "Order: ends has .*NEW.*; it takes states of OrderState but NEW"),
        ({"ends": {Other.NEW}}, "Order: ends has .*Other.NEW"),
        ({"begins": {E.PAID}}, "Order: begins has .*PAID.*, but NEW accepts only PLACED"),
        ({"factory": StateMachineFactory(S.NEW)}, "the factory has no name"),
    ],
)
def test_mistakes_are_told_when_the_entities_are_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        orders(**options)


def test_a_recorder_of_another_journal_is_refused(path: Path) -> None:
    journal = JournalWriter(path)
    try:
        with pytest.raises(ValueError, match=r"the recorder does not write to .*journal"):
            orders(journal=journal)
    finally:
        journal.close()


def test_an_operand_of_another_name_is_refused() -> None:
    entities = Entities(FACTORY, lambda entity, state: Order("x"), recorder=TransitionRecorder(), ends=())

    with pytest.raises(
        ValueError, match=r"machine and entity are \('Order', 'x'\); they are to be \('Order', 'order_1'\)"
    ):
        send(entities, "order_1", E.PLACED)


def test_an_id_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="the event's entity is 7; the id of an entity is text"):
        orders().handle(OrderEvent(E.PLACED, 7))


# -- restoring -------------------------------------------------------------------------------------------------------


def test_restoring_calls_no_hook_and_records_no_transition(path: Path) -> None:
    calls: list[str] = []
    factory = FACTORY.add_transition(S.NEW, S.PLACED, E.PLACED, lambda order, event: calls.append(order.entity))
    _, dispatcher = shop(write_ahead(path), factory=factory)
    with dispatcher:
        dispatcher.post(OrderEvent(E.PLACED, "order_1"))
    before = list(read_rows(path, TRANSITIONS))
    journal = write_ahead(path)
    entities, dispatcher = shop(journal, factory=factory)

    entities.restore()

    dispatcher.stop()
    assert calls == ["order_1"]
    assert list(read_rows(path, TRANSITIONS)) == before


def test_restored_entities_are_counted_and_listed_in_their_states(path: Path) -> None:
    """They were counted in the initial state, whatever the state in which they were made."""
    _, dispatcher = shop(write_ahead(path))
    with dispatcher:
        for event in (OrderEvent(E.PLACED, "order_1"), OrderEvent(E.PAID, "order_1"), OrderEvent(E.PLACED, "order_2")):
            dispatcher.post(event)
    entities, dispatcher = shop(write_ahead(path))

    count = entities.restore()
    restored: Any = entities.get("order_1")
    with dispatcher:
        dispatcher.post(OrderEvent(E.PAID, "order_2"))

    assert (count, restored.made_in, dispatcher.stats().failed) == (2, S.PAID, 0)
    recorder: TransitionRecorder = entities._recorder
    assert recorder.machines["Order"].entities() == {"NEW": 0, "PLACED": 0, "PAID": 2}
    assert recorder.initial_state("Order") == "NEW"
    assert [found.state for found in recorder.find_entity("order_1")] == ["PAID"]


def restored(path: Path, factory: StateMachineFactory[Any, Any], make: Any = Order) -> Entities[Any, Any]:
    """What comes back, with these, of a shop with an order that was placed."""
    _, dispatcher = shop(write_ahead(path))
    with dispatcher:
        dispatcher.post(OrderEvent(E.PLACED, "order_1"))
    journal = write_ahead(path)
    entities = Entities(factory, make, recorder=TransitionRecorder(journal), journal=journal, ends=())
    try:
        entities.restore()
    finally:
        journal.close()
    return entities


def test_a_renamed_state_is_found_by_its_alias(path: Path) -> None:
    class Renamed(Enum):
        NEW = 1
        SUBMITTED = 2
        PLACED = SUBMITTED

    factory = StateMachineFactory[Renamed, Any](Renamed.NEW, "Order").add_transition(
        Renamed.NEW, Renamed.SUBMITTED, E.PLACED
    )

    assert restored(path, factory).state("order_1") is Renamed.SUBMITTED


def test_a_state_that_is_gone_is_named(path: Path) -> None:
    with pytest.raises(JournalError, match="Order order_1 is in PLACED, which is no longer one of the states of Other"):
        restored(path, StateMachineFactory[Other, Any](Other.NEW, "Order"))


def test_an_error_of_make_names_the_entity(path: Path) -> None:
    def load(entity: str, state: OrderState | None) -> Order:
        raise LookupError("not in the database")

    with pytest.raises(LookupError) as raised:
        restored(path, FACTORY, load)

    assert raised.value.__notes__ == ["while Order order_1 was restored in PLACED"]


def test_entities_without_a_journal_cannot_be_restored() -> None:
    with pytest.raises(JournalError, match="Order: there is no journal to restore from"):
        orders().restore()


@pytest.mark.parametrize(("journal", "first"), [(JournalWriter, "shop"), (PartitionedJournal, "shop-0")])
def test_entities_cannot_be_restored_once_the_dispatcher_has_started(path: Path, journal: Any, first: str) -> None:
    kind = AsyncDispatcher if journal is JournalWriter else MultiDispatcher
    writes = journal(path)
    entities = orders(TransitionRecorder(writes), journal=writes)

    with (
        kind(name="shop", journal=writes),
        pytest.raises(JournalError, match=f"cannot be restored once {first} has started"),
    ):
        entities.restore()


# -- partitions with a journal ---------------------------------------------------------------------------------------


def partitioned_shop(
    path: Path, partitions: int, loop: asyncio.AbstractEventLoop | None = None
) -> tuple[Entities[OrderState, Order], MultiDispatcher]:
    """Restored entities and their dispatcher, with an `async def` handler if there is a loop."""
    journal = PartitionedJournal(path, JournalConfig(write_ahead=True))
    entities = orders(TransitionRecorder(journal), journal=journal, snapshot_transitions=5)
    dispatcher = MultiDispatcher(name="shop", partitions=partitions, journal=journal, loop=loop)

    async def handle(event: OrderEvent) -> None:
        await asyncio.sleep(0)
        entities.handle(event)

    dispatcher.register(OrderType, entities if loop is None else handle, events=OrderEvent)
    entities.restore()
    return entities, dispatcher


@pytest.mark.parametrize("kind", ["plain", "async"])
@given(runs=st.lists(st.integers(1, 4), min_size=2, max_size=4))
@example(runs=[4, 3, 2, 4])  # an order that ends in its new partition does not come back from the old one
@settings(max_examples=6, deadline=None)
def test_entities_come_back_in_any_numbers_of_partitions(
    tmp_path_factory: pytest.TempPathFactory, kind: str, runs: list[int]
) -> None:
    """Each run makes a step of each order, so an order that is restored in an earlier state refuses the next one."""
    path = tmp_path_factory.mktemp("shop") / "journal"
    with running_loop() if kind == "async" else nullcontext() as loop:
        run_shops(path, loop, runs)


def run_shops(path: Path, loop: asyncio.AbstractEventLoop | None, runs: list[int]) -> None:
    steps, then = (E.PLACED, E.PAID, E.DELIVERED), (None, S.PLACED, S.PAID)
    for run, partitions in enumerate(runs):
        entities, dispatcher = partitioned_shop(path, partitions, loop)
        states = {entity: entities.state(entity) for entity in entities}
        live = {f"order_{begun}_{n}": then[run - begun] for begun in range(max(0, run - 2), run) for n in range(8)}
        assert states == live
        with dispatcher:
            for entity in live:
                dispatcher.post(OrderEvent(steps[run - int(entity.split("_")[1])], entity))
            for number in range(8):
                dispatcher.post(OrderEvent(E.PLACED, f"order_{run}_{number}"))
        assert [partition.stats().failed for partition in dispatcher.partitions] == [0] * partitions


def test_an_id_that_is_a_member_of_a_str_enum_is_found_by_its_value_after_a_restart(path: Path) -> None:
    """The journal had `Region.EU`, the text of the member, so the next event found no entity "eu"."""
    _, first = shop(write_ahead(path), events=RegionalEvent)
    with first:
        first.post(RegionalEvent(E.PLACED, Region.EU))
    entities, second = shop(write_ahead(path), events=RegionalEvent)
    entities.restore()
    with second:
        second.post(RegionalEvent(E.PAID, Region.EU))

    assert (list(entities), entities.state("eu")) == (["eu"], S.PAID)
    assert [(row["entity"], row["to_state"]) for row in read_rows(path, TRANSITIONS)] == [
        ("eu", "PLACED"),
        ("eu", "PAID"),
    ]
    assert second.stats().failed == 0
