"""An AsyncDispatcher does what a list and a few counters say it should, whatever happens to it in whatever order.

The handler thread is always at rest when the test looks: it waits, is held in the hands of the test, or has ended.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from concurrent.futures import CancelledError, Future
from enum import Enum
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher import AskError, DispatcherConfig, EventDiscardedError, EventRefusedError, UnregisteredEventTypeError
from dispatcher.testing import DrainDispatcher

from ..kit import TIMEOUT_S, Other, Work, tries


class Latest(Enum):
    """Of these, a newer event supersedes the queued one of its key, while the first registration of them lasts."""

    IS = 1


class Held(Enum):
    """The handler of these stays in them until the test lets it go."""

    IS = 1


class Task:
    """An event, and what its first handler does: posts its children, "stop", or "raise", in this order."""

    def __init__(self, type: Enum, number: int, actions: tuple[Any, ...] = ()) -> None:
        self.type = type
        self.number = number
        self.key = number % 2
        self.actions = actions


def key_of(event: Task) -> int:
    return event.key


def outcome_of(ask: Future[Any]) -> Any:
    """The answer, or the class of the error and what it is about."""
    try:
        return ask.result(TIMEOUT_S)  # a stop on another thread may be about to tell it
    except (EventRefusedError, EventDiscardedError) as error:
        return type(error), error.reason
    except UnregisteredEventTypeError as error:
        return type(error), error.event_type
    except ValueError as error:
        return type(error), error.args[0]
    except CancelledError as error:
        return type(error), None


TYPES = st.sampled_from([Work.DO, Work.MORE, Other.DO, Latest.IS])
ACTIONS = st.lists(st.sampled_from(["stop", "raise", "post", "post", "latest"]), max_size=3)


class DispatcherMachine(RuleBasedStateMachine):
    @initialize(
        bound=st.none() | st.tuples(st.integers(1, 3), st.sampled_from(["reject", "drop_oldest"])), drain=st.booleans()
    )
    def make(self, bound: tuple[int, Any] | None, drain: bool) -> None:
        capacity, policy = bound or (None, "block")
        config = DispatcherConfig(
            queue_capacity=capacity, queue_full_policy=policy, drain_events_on_stop=drain, batch_size=3
        )
        self.dispatcher = DrainDispatcher(config)
        self.first, self.second = self._first, self._second  # bound methods are equal, but no two are the same
        self.dispatcher.register(Work, self.first)
        self.dispatcher.register(Latest, self.first, coalesce_by=key_of)
        self.dispatcher.register(Held, self._hold)
        self.seen: list[tuple[str, int]] = []  # handler thread; the test looks while that is at rest
        self.answers: list[bool] = []  # of the posts of handlers; as above
        self.entered, self.opened = threading.Semaphore(0), threading.Semaphore(0)
        self.stopper: threading.Thread | None = None
        self.numbers = 0
        # The model.
        self.drain, self.policy = drain, policy
        self.phase = "running"
        self.is_started = self.is_held = self.has_ended = False
        self.registered: dict[type, list[str]] = {Work: ["first"], Other: [], Latest: ["first"]}
        self.coalesces = True
        self.queue: list[Task] = []
        self.capacity, self.permits, self.overdraft = capacity or 0, capacity, 0
        self.accepted = self.handled = self.failed = 0
        self.expected: list[tuple[str, int]] = []
        self.expected_answers: list[bool] = []
        self.discarded: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.asks: dict[int, Future[Any]] = {}  # by the number of the event
        self.outcomes: dict[int, Any] = {}  # of those that are done
        self.withdrawn: set[int] = set()

    # -- what the handler thread really does -------------------------------------------------------------------------

    def _first(self, event: Task) -> int:
        self.seen.append(("first", event.number))
        for action in event.actions:
            if action == "stop":
                self.dispatcher.stop()
            elif action == "raise":
                raise ValueError(event.number)
            else:
                self.answers.append(self.dispatcher.post(action))
        return event.number

    def _second(self, event: Task) -> int:
        self.seen.append(("second", event.number))
        return event.number

    def _hold(self, event: Task) -> int:
        self.entered.release()
        assert self.opened.acquire(timeout=TIMEOUT_S)
        self.seen.append(("held", event.number))
        return event.number

    # -- what the model says that it does ----------------------------------------------------------------------------

    def model_post(self, event: Task, inside: bool) -> bool:
        # Handlers finish their work while the dispatcher drains; one that does not drain has no use for it.
        if self.phase == "stopped" or (self.phase == "draining" and not inside):
            self.rejected[self.phase] += 1
            self.outcomes[event.number] = EventRefusedError, self.phase
            return False
        if self.coalesces and type(event.type) is Latest:
            for place, queued in enumerate(self.queue):
                is_live = queued.number not in self.withdrawn
                if is_live and type(queued.type) is Latest and queued.key == event.key:
                    self.queue[place] = event
                    self.discard("superseded", queued)
                    self.accepted += 1
                    return True
        if self.permits:
            self.permits -= 1
        elif self.permits == 0 and inside:
            self.overdraft += 1
        elif self.permits == 0 and self.policy == "reject":
            self.rejected["full"] += 1
            self.outcomes[event.number] = EventRefusedError, "full"
            return False
        elif self.permits == 0:
            self.discard("drop_oldest", self.queue.pop(0))
        self.queue.append(event)
        self.accepted += 1
        return True

    def live(self) -> list[Task]:
        """Without the places of withdrawn events."""
        return [event for event in self.queue if event.number not in self.withdrawn]

    def discard(self, reason: str, event: Task) -> None:
        if event.number in self.withdrawn:
            return
        self.discarded[reason] += 1
        self.outcomes.setdefault(event.number, (EventDiscardedError, reason))

    def model_stop(self) -> None:
        if self.phase == "running":
            self.phase = "draining" if self.drain and self.is_started else "stopped"
            if self.phase == "stopped":
                for event in self.queue:
                    self.discard("stop", event)
                self.queue.clear()

    def model_run(self) -> None:
        """The handler thread goes on until it has nothing to do, or is held."""
        while self.queue and not self.is_held:
            event = self.queue.pop(0)
            if self.overdraft:
                self.overdraft -= 1
            elif self.permits is not None:
                self.permits += 1
            if event.number in self.withdrawn:
                continue
            if type(event.type) is Held:
                self.is_held, self.held = True, event
            else:
                self.model_handle(event)
        if self.phase != "running" and not self.is_held:
            self.has_ended, self.phase = True, "stopped"

    def model_handle(self, event: Task) -> None:
        handlers = self.registered[type(event.type)]
        for handler in handlers:
            self.expected.append((handler, event.number))
            for action in event.actions if handler == "first" else ():
                if action == "stop":
                    self.model_stop()
                elif action == "raise":
                    self.failed += 1
                    self.outcomes[event.number] = ValueError, event.number
                    return
                else:
                    self.expected_answers.append(self.model_post(action, inside=True))
        if handlers:
            self.handled += 1
            self.outcomes[event.number] = event.number if len(handlers) == 1 else None
        else:
            self.failed += 1
            self.outcomes[event.number] = UnregisteredEventTypeError, event.type

    def catch_up(self) -> None:
        """Both go on until the handler thread is at rest."""
        if not self.is_started or self.has_ended:
            return
        if not self.is_held:
            self.model_run()
            if self.is_held:
                assert self.entered.acquire(timeout=TIMEOUT_S)
        if self.has_ended:
            assert self.dispatcher.wait_for_service_to_stop(TIMEOUT_S)
        elif not self.is_held:
            self.dispatcher.wait_for_event_thread_to_wait(TIMEOUT_S)

    # -- what happens --------------------------------------------------------------------------------------------------

    def new(self, type: Enum, actions: tuple[Any, ...] = ()) -> Task:
        self.numbers += 1
        return Task(type, self.numbers, actions)

    def post(self, event: Task) -> None:
        was_accepted = self.dispatcher.post(event)

        assert was_accepted == self.model_post(event, inside=False)
        self.catch_up()

    def ask(self, event: Task) -> None:
        if len(self.registered.get(type(event.type), ())) > 1:
            with pytest.raises(AskError, match=f"{type(event.type).__name__} has"):
                self.dispatcher.ask(event)
            return
        self.asks[event.number] = self.dispatcher.ask(event)
        self.model_post(event, inside=False)
        self.catch_up()

    @rule(type=TYPES)
    def post_an_event(self, type: Enum) -> None:
        self.post(self.new(type))

    @rule(type=TYPES, actions=st.lists(st.sampled_from(["stop", "raise"]), max_size=1))
    def ask_for_an_event(self, type: Enum, actions: list[str]) -> None:
        self.ask(self.new(type, tuple(actions)))

    @rule()
    def ask_for_an_event_that_holds_the_handler(self) -> None:
        self.ask(self.new(Held.IS))

    @precondition(lambda self: any(event.number in self.asks for event in self.live()))
    @rule(first=st.booleans())
    def withdraw_an_event(self, first: bool) -> None:
        asked = [event.number for event in self.live() if event.number in self.asks]
        number = asked[0 if first else -1]
        assert self.asks[number].cancel()
        self.withdrawn.add(number)
        self.discarded["withdrawn"] += 1
        tombs = sum(event.number in self.withdrawn for event in self.queue)
        if self.permits is not None and tombs <= self.capacity:  # its room is given back before its place comes up
            self.permits += 1
            self.overdraft += 1
        self.outcomes[number] = CancelledError, None

    @rule(type=TYPES, actions=ACTIONS, grandchildren=st.booleans())
    def post_an_event_whose_handler_does_something(self, type: Enum, actions: list[str], grandchildren: bool) -> None:
        done: list[Any] = []
        for action in actions:
            if action in ("post", "latest"):
                kind = Work.DO if action == "post" else Latest.IS
                done.append(self.new(kind, (self.new(kind),) if grandchildren else ()))
            else:
                done.append(action)
        self.post(self.new(type, tuple(done)))

    @rule()
    def hold_the_handler(self) -> None:
        self.post(self.new(Held.IS))

    @precondition(lambda self: self.is_held)
    @rule()
    def release_the_handler(self) -> None:
        self.expected.append(("held", self.held.number))
        self.outcomes[self.held.number] = self.held.number
        self.handled += 1
        self.is_held = False
        self.opened.release()
        self.catch_up()

    @precondition(lambda self: not self.is_started and self.phase == "running")
    @rule()
    def start(self) -> None:
        has_started = threading.Event()
        # A stop that came from a handler during the start would be made after it, by this thread, at any moment.
        self.dispatcher.mailbox_executor.execute(lambda: has_started.wait(TIMEOUT_S), "wait for the end of the start")
        self.dispatcher.start()
        has_started.set()
        self.is_started = True
        self.catch_up()

    @rule(type=st.sampled_from([Work, Other, Latest]))
    def register(self, type: Any) -> None:
        handlers = self.registered[type]
        if len(handlers) < 3:
            missing = "first" if "first" not in handlers else "second"
            self.dispatcher.register(type, getattr(self, missing))
            handlers.append(missing)

    @rule(type=st.sampled_from([Work, Other, Latest]), handler=st.sampled_from(["first", "second"]))
    def unregister(self, type: Any, handler: str) -> None:
        was_registered = self.dispatcher.unregister(type, getattr(self, handler))

        assert was_registered == (handler in self.registered[type])
        if was_registered:
            self.registered[type].remove(handler)
            if type is Latest and handler == "first":
                self.coalesces = False

    @rule()
    def await_drained(self) -> None:
        if self.is_held or not self.is_started:
            expected = not self.live() and not self.is_held
            assert self.dispatcher.is_drained() == expected
        else:
            assert self.dispatcher.await_drained(TIMEOUT_S)

    @rule()
    def stop(self) -> None:
        if self.is_held:  # it waits for the handler
            if self.stopper is None:
                self.stopper = threading.Thread(target=self.dispatcher.stop)
                self.stopper.start()
                while not self.dispatcher.core.queue.phase or not (self.drain or not self.dispatcher.queue_size()):
                    assert self.stopper.is_alive()
            self.model_stop()
        else:
            self.dispatcher.stop()
            self.model_stop()
            if not self.is_started:
                self.has_ended = True
            self.catch_up()

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        dispatcher = self.dispatcher
        assert self.seen == self.expected
        assert self.answers == self.expected_answers
        assert dispatcher.queue_size() == len(self.live())
        assert dispatcher.queue_contents() == Counter(event.type for event in self.live())
        stats = dispatcher.stats()
        assert (stats.handled, stats.failed) == (self.handled, self.failed)
        assert stats.discarded_by_reason == +self.discarded
        assert stats.rejected == +self.rejected
        in_hand = int(self.is_held)
        assert stats.accepted == self.accepted
        assert self.accepted == (self.handled + self.failed + len(self.live()) + in_hand + self.discarded.total())
        assert dispatcher.is_stopped() == self.has_ended
        for number, ask in self.asks.items():
            if number in self.outcomes:
                assert outcome_of(ask) == self.outcomes[number]
            else:
                assert not ask.done()

    def teardown(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        self.stop()
        while self.is_held:
            self.release_the_handler()
        if self.stopper is not None:
            self.stopper.join(TIMEOUT_S)
            assert not self.stopper.is_alive()
        self.it_is_as_the_model_says()
        assert self.has_ended
        assert not self.queue


class TestDispatcherModel(DispatcherMachine.TestCase):
    settings = settings(max_examples=tries(60), stateful_step_count=30, deadline=None)

    @pytest.fixture(autouse=True)
    def _no_logging(self) -> Any:
        """Of handlers that fail on purpose."""
        logging.disable(logging.CRITICAL)
        yield
        logging.disable(logging.NOTSET)
