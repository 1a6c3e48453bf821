"""Posts, a stop and the handler thread meet in every order (invariant 2): in a model, and with the real classes.

The model is small enough to walk all orders of all its steps. It shows that the steps, as they are meant, strand no
event, and that each of the precautions is needed. The real classes are walked with a few preemptions at each place
where they touch what threads share; that shows that they are written as they are meant.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig
from dispatcher.queue.flags import ABANDONED
from dispatcher.testing import ManualClock

from ...kit import Numbered, Work
from ._baton import PRODUCER, Scheduler, prepare, replace_what_is_shared, walk
from ._stop_model import DONE, Rules, State, explore

# -- the model --------------------------------------------------------------------------------------------------------


def check_that_all_is_done(rules: Rules) -> Callable[[State], None]:
    def check(state: State) -> None:
        assert set(state.producers) == {DONE}, state
        assert state.stopper == DONE, state
        assert state.handler == ("wait" if rules.drain is None else DONE), state
        assert state.queue == (), state
        for event, accepted in enumerate(state.answers):
            assert (state.handled + state.discarded).count(event) == int(accepted is True), state
        if rules.drain is not False and not rules.impatient:
            assert state.discarded == (), state

    return check


_NO_STOP = Rules(drain=None)
ALL_STOPS = [Rules(), Rules(drain=False), Rules(impatient=True), _NO_STOP]
WALKS = [
    # The model says nothing of the code: its longest walks are for whoever changes the model.
    pytest.param(producers, full, rules, marks=[pytest.mark.minutes] if is_long else [])
    for producers in (1, 2)
    for full in ("unbounded", "reject", "block", "timeout")
    for rules in ALL_STOPS
    for is_long in (producers == 2 and (full == "timeout" or rules not in (Rules(), _NO_STOP)),)
]


@pytest.mark.slow
@pytest.mark.parametrize(("producers", "full", "rules"), WALKS)
def test_in_no_order_of_the_model_is_an_event_stranded(producers: int, full: str, rules: Rules) -> None:
    rules = rules._replace(full=full)

    states = explore(producers, None if full == "unbounded" else 1, rules, check_that_all_is_done(rules))

    assert states > 100


@pytest.mark.slow
@pytest.mark.minutes
def test_in_no_order_of_the_model_with_three_producers_is_an_event_stranded() -> None:
    states = explore(3, None, Rules(), check_that_all_is_done(Rules()))

    assert states > 100_000


@pytest.mark.parametrize(
    ("rules", "capacity", "producers"),
    [
        (Rules(left_out="look after the append"), None, 1),
        (Rules(left_out="look after the append", drain=False), None, 1),
        (Rules(left_out="reset before the release"), None, 2),
        (Rules(left_out="look again before the wait"), None, 1),
        (Rules(left_out="take what came in last"), None, 1),
        (Rules(left_out="leave what is late to its producer"), None, 1),
        (Rules(left_out="discard only after a stop of its own"), None, 1),
        (Rules(left_out="look after a permit was given", full="block", drain=None), 1, 2),
        (Rules(left_out="look again after the reset", full="block", drain=None), 1, 3),
        (Rules(left_out="look again after the lock was queued", full="block", drain=None), 1, 2),
        (Rules(left_out="pass the turn on", full="timeout", drain=None), 1, 3),
        (Rules(left_out="wake all once shut", full="block"), 1, 2),
    ],
    ids=lambda value: value.left_out if isinstance(value, Rules) else None,
)
def test_the_model_shows_what_each_precaution_is_for(rules: Rules, capacity: int | None, producers: int) -> None:
    with pytest.raises(AssertionError):
        explore(producers, capacity, rules, check_that_all_is_done(rules))


# -- the real classes -------------------------------------------------------------------------------------------------


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Dispatchers run in the order that a scheduler says, and log nothing."""
    replace_what_is_shared(monkeypatch)
    monkeypatch.setattr(AsyncDispatcher, "_describe_handler", lambda _: "")  # of an abort; takes long
    logging.disable(logging.CRITICAL)
    yield monkeypatch
    logging.disable(logging.NOTSET)


def run_one_order(
    scheduler: Scheduler,
    *,
    producers: int,
    waiting: bool = True,
    stop: bool = True,
    follow_ups: bool = False,
    **settings: Any,
) -> None:
    """Posts of one event each, and a stop; `waiting`: when the handler thread has got as far as its first wait.

    With `follow_ups` the handler posts one more event for each.
    """
    handled: list[int] = []
    answers: dict[int, bool] = {}
    prepare(scheduler)
    dispatcher = AsyncDispatcher(DispatcherConfig(measure_times="none", **settings), time_service=ManualClock())

    def check_drained() -> None:
        """Invariant 3: a dispatcher that is drained has ended all that it has accepted."""
        queue, accepted = dispatcher.core.queue, sum(answers.values())
        # What is dropped or discarded is counted once it was taken.
        if queue.phase < ABANDONED and settings.get("queue_full_policy") != "drop_oldest":
            assert not dispatcher.is_drained() or accepted <= len(handled) + sum(queue.dropped.values())

    def post(number: int) -> None:
        answers[number] = dispatcher.event_handler.handle(Numbered(number))

    def handle(event: Numbered) -> None:
        handled.append(event.number)
        if follow_ups and event.number < 100:
            post(event.number + 100)

    dispatcher.register(Work, handle)
    dispatcher.start()
    scheduler.check = check_drained
    if waiting:
        scheduler.settle()
    for number in range(producers):
        scheduler.spawn(PRODUCER, lambda number=number: post(number))
    if stop:
        scheduler.spawn("stopper", dispatcher.stop)
        scheduler.run()
    else:
        scheduler.settle()
        scheduler.spawn("stopper", dispatcher.stop)
        stranded = dispatcher.queue_size()
        scheduler.run()
        assert not stranded
        assert len(answers) == producers

    accepted = [number for number in answers if answers[number]]
    assert answers.keys() >= set(range(producers))
    assert dispatcher.is_stopped()
    assert dispatcher.queue_size() == 0, f"stranded: {dispatcher.queue_contents()}"
    assert dispatcher.stats().accepted == dispatcher.stats().handled + dispatcher.stats().discarded == len(accepted)
    assert len(set(handled)) == len(handled) == dispatcher.stats().handled
    assert set(handled) <= set(accepted)
    assert sum(dispatcher.stats().rejected.values()) == len(answers) - len(accepted)
    if settings.get("drain_events_on_stop", True) and settings.get("drain_timeout_s", 1.0):
        assert dispatcher.stats().discarded == dispatcher.stats().discarded_by_reason.get("drop_oldest", 0)
        assert all(answers.get(number + 100, True) for number in handled)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preemptions", "setting"),
    [
        pytest.param(2, {"producers": 1}, marks=pytest.mark.minutes),
        pytest.param(2, {"producers": 1, "drain_events_on_stop": False}, marks=pytest.mark.minutes),
        (1, {"producers": 1}),
        (1, {"producers": 1, "drain_events_on_stop": False}),
        (1, {"producers": 1, "waiting": False}),
        (1, {"producers": 1, "waiting": False, "drain_events_on_stop": False}),
        (1, {"producers": 1, "drain_timeout_s": 0.0}),
        (1, {"producers": 1, "follow_ups": True}),
        (1, {"producers": 2}),
        pytest.param(1, {"producers": 2, "drain_events_on_stop": False}, marks=pytest.mark.minutes),
        pytest.param(1, {"producers": 2, "queue_capacity": 1}, marks=pytest.mark.minutes),
        pytest.param(
            1, {"producers": 2, "queue_capacity": 1, "queue_full_policy": "reject"}, marks=pytest.mark.minutes
        ),
        (1, {"producers": 2, "queue_capacity": 1, "stop": False}),
        (1, {"producers": 3, "stop": False}),
        (0, {"producers": 3}),
        (0, {"producers": 3, "drain_events_on_stop": False}),
        (0, {"producers": 3, "queue_capacity": 1}),
        (0, {"producers": 3, "queue_capacity": 1, "drain_events_on_stop": False}),
    ],
    ids=str,
)
@pytest.mark.usefixtures("stepped")
def test_in_no_order_of_few_preemptions_is_an_event_stranded(preemptions: int, setting: dict[str, Any]) -> None:
    orders = walk(lambda scheduler: run_one_order(scheduler, **setting), preemptions)

    assert orders > 20


DROP_OLDEST = {"producers": 2, "queue_capacity": 1, "queue_full_policy": "drop_oldest"}


@pytest.mark.slow
@pytest.mark.parametrize("drain", [pytest.param(True, marks=pytest.mark.minutes), False])
@pytest.mark.usefixtures("stepped")
def test_a_producer_that_drops_the_oldest_ends_when_the_dispatcher_stops_meanwhile(drain: bool) -> None:
    """The producer spun, waiting for a permit or an event of a queue that had ended."""
    walk(lambda scheduler: run_one_order(scheduler, **DROP_OLDEST, drain_events_on_stop=drain), preemptions=1)


@pytest.mark.usefixtures("stepped")
def test_without_a_stop_producers_that_drop_the_oldest_end() -> None:
    assert walk(lambda scheduler: run_one_order(scheduler, **DROP_OLDEST, stop=False), preemptions=1) > 20


@pytest.mark.parametrize("drain", [True, False])
def test_the_walk_finds_the_event_that_check_then_append_strands(stepped: pytest.MonkeyPatch, drain: bool) -> None:
    def check_then_append(queue: Any) -> Callable[[Any], bool]:
        def post(event: Any) -> bool:
            if queue.flags.phase:
                return queue.state.reject("stopped")
            queue.entries.append(event)
            queue.wake()
            return True

        return post

    stepped.setattr("dispatcher.queue.inbox.Inbox._make_post", check_then_append)

    with pytest.raises(AssertionError, match="stranded") as found:
        walk(lambda scheduler: run_one_order(scheduler, producers=1, drain_events_on_stop=drain), preemptions=1)

    assert "in order" in found.value.__notes__[0]


def test_the_walk_finds_the_wait_of_a_handler_thread_that_looks_too_early(stepped: pytest.MonkeyPatch) -> None:
    """A wake-up is lost if the wait is announced after the last look: here, no producer takes the duty."""
    stepped.setattr("dispatcher.queue.inbox.Inbox._make_after", lambda _: lambda entry: True)

    with pytest.raises(AssertionError):
        walk(lambda scheduler: run_one_order(scheduler, producers=1, stop=False), preemptions=0)
