"""MailboxProcessor against a simple model of C4: random mail, random turns, and all ways to run and end the loop.

What the mail, the default action and other threads do is data, so that the real processor and the model can both do
it; what both log is the same. Nothing is left to chance: other threads act one at a time, and while the mailbox thread
waits, at the moment it does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher.mailbox import (
    MIN_PRIORITY,
    MailboxClosedError,
    MailboxController,
    MailboxProcessor,
    MailboxState,
    MailOptions,
    RejectedExecutionError,
    Suspension,
)

from ...kit import tries
from .conftest import TIMEOUT_S, arrive_while_waiting
from .processor_model import Deed, Do, Failure, ProcessorModel, Send, TryYield, Turn
from .test_idle_timers import LoggingTimer

# -- what is done ------------------------------------------------------------------------------------------------------

priorities = st.integers(MIN_PRIORITY, 2)
all_options = st.sampled_from([MailOptions.DEFAULT, MailOptions.URGENT, MailOptions.DEFERRABLE])


def sends(does: st.SearchStrategy[tuple[Deed, ...]]) -> st.SearchStrategy[Send]:
    return st.builds(Send, priorities, all_options, st.booleans(), does)


def deeds(of: st.SearchStrategy[Deed], at_most: int) -> st.SearchStrategy[tuple[Deed, ...]]:
    return st.lists(of, max_size=at_most).map(tuple)


from_others = st.sampled_from([Do.SUSPEND_LOOP, Do.RESUME, Do.RESUME_OLDEST, Do.REPORT])
yields = st.builds(TryYield, priorities, st.booleans())
simple = st.one_of(st.sampled_from(list(Do)), yields, sends(st.just(())))
mails = sends(deeds(simple | sends(deeds(simple, 1)), 3))
turns = st.builds(Turn, deeds(mails | yields | from_others, 2), st.booleans())
arrivals = st.lists(mails | from_others, min_size=1, max_size=2)


# -- the real one ----------------------------------------------------------------------------------------------------


class Real:
    """The processor, of the thread that makes this, and one other thread."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.owner = threading.current_thread()
        self.processor = MailboxProcessor(self.turn)
        arrive_while_waiting(self.processor.mailbox, self.arrive)
        self.suspensions: list[Suspension] = []
        self.turns: deque[Turn] = deque()
        self.arrivals: deque[list[Deed]] = deque()
        self.log: list[str] = []
        self.futures: dict[str, Future[Any]] = {}
        self.names = map(str, count())

    def outside(self, what: Deed) -> None:
        self.pool.submit(self.do, what).result(TIMEOUT_S)

    def arrive(self) -> None:
        self.log.append("waits")
        for each in self.arrivals.popleft() if self.arrivals else [Do.SUSPEND_LOOP]:
            self.outside(each)

    def do(self, what: Deed) -> None:
        match what:
            case Send():
                self.send(what)
            case TryYield(priority, ignore_deferrable):
                self.processor.mailbox_executor(priority).try_yield(ignore_deferrable=ignore_deferrable)
            case Do.FAIL:
                raise Failure("failed")
            case Do.SUSPEND_LOOP:
                self.processor.suspend()
            case Do.RESUME | Do.RESUME_OLDEST if self.suspensions:
                self.suspensions[-1 if what is Do.RESUME else 0].resume()
            case Do.REPORT:
                try:
                    self.processor.report_throwable(Failure("reported"))
                except MailboxClosedError:
                    self.log.append("no report")

    def send(self, what: Send) -> None:
        name = next(self.names)
        executor = self.processor.mailbox_executor(what.priority)

        def run() -> None:
            assert threading.current_thread() is self.owner
            self.log.append(name)
            for each in what.does:
                self.do(each)

        try:
            if what.submitted:
                self.futures[name] = executor.submit(run, name, options=what.options)
            else:
                executor.execute(run, name, options=what.options)
        except RejectedExecutionError:
            self.log.append(f"refused {name}")

    def turn(self, controller: MailboxController) -> None:
        assert self.processor.is_default_action_available(), "a turn of a suspended default action"
        self.log.append("action")
        turn = self.turns.popleft() if self.turns else Turn((Do.SUSPEND_LOOP,))
        for each in turn.does:
            self.do(each)
        if turn.suspends:
            self.suspensions.append(controller.suspend_default_action(LoggingTimer(self.log)))


def outcome(call: Callable[[], Any]) -> Any:
    """What the call returns, or which error it raises."""
    try:
        return call()
    except (Failure, MailboxClosedError) as error:
        return type(error), str(error)


class ProcessorMachine(RuleBasedStateMachine):
    """Each rule is followed by both, with the same outcome; then they look the same."""

    @initialize()
    def make(self) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.real = Real(self.pool)
        self.model = ProcessorModel()

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.pool.shutdown()

    def is_open(self) -> bool:
        return self.model.state is MailboxState.OPEN

    @rule(what=mails | from_others, owner=st.booleans())
    def act(self, what: Deed, owner: bool) -> None:
        (self.real.do if owner else self.real.outside)(what)
        self.model.do(what, owner=owner)

    @rule(turn=turns)
    def plan_a_turn(self, turn: Turn) -> None:
        self.real.turns.append(turn)
        self.model.turns.append(turn)

    @rule(arriving=arrivals)
    def plan_an_arrival(self, arriving: list[Deed]) -> None:
        """For the next wait of the loop, in which there is a suspension: so all of this sends mail, and ends it."""
        self.real.arrivals.append(arriving)
        self.model.arrivals.append(arriving)

    @rule()
    def run_step(self) -> None:
        assert outcome(self.real.processor.run_mailbox_step) == outcome(self.model.run_step)

    @rule()
    def run_single_loop(self) -> None:
        assert outcome(self.real.processor.run_single_mailbox_loop) == outcome(self.model.run_single_loop)

    @rule()
    def run_loop(self) -> None:
        assert outcome(self.real.processor.run_mailbox_loop) == outcome(self.model.run_loop)

    @rule(turns=st.lists(turns, min_size=1, max_size=5))
    def run_loop_for_some_turns(self, turns: list[Turn]) -> None:
        self.real.turns.extend(turns)
        self.model.turns.extend(turns)
        self.run_loop()

    @precondition(lambda self: len(self.model.accepted) > 8)
    @rule(owner=st.booleans())
    def complete(self, owner: bool) -> None:
        complete = self.real.processor.all_actions_completed
        _ = complete() if owner else self.pool.submit(complete).result(TIMEOUT_S)
        self.model.control(self.model.complete, owner=owner)

    @precondition(lambda self: len(self.model.accepted) > 12)
    @rule()
    def prepare_close(self) -> None:
        self.real.processor.prepare_close()
        self.model.prepare_close()

    @precondition(lambda self: not self.is_open())
    @rule()
    def drain(self) -> None:
        assert outcome(self.real.processor.drain) == outcome(self.model.drain)

    @precondition(lambda self: len(self.model.accepted) > 16)
    @rule()
    def close(self) -> None:
        self.real.processor.close()
        self.model.close()

        cancelled = [name for name, future in self.real.futures.items() if future.cancelled()]
        assert sorted(cancelled) == sorted(self.model.cancelled)
        assert all(future.done() for future in self.real.futures.values())

    @invariant()
    def both_did_the_same(self) -> None:
        assert self.real.log == self.model.log
        assert self.real.processor.mails_run == self.model.mails_run

    @invariant()
    def both_are_in_the_same_state(self) -> None:
        real, model = self.real.processor, self.model
        assert real.mailbox.state is model.state
        assert real.is_mailbox_loop_running() is model.loop_running
        assert real.is_default_action_available() is (model.suspension is None)
        assert real.mailbox.size() == len(model.rest) + len(model.box.all())
        idle = model.suspension is not None and not real.mailbox.size() and self.is_open()
        assert real.is_idle() is idle

    @invariant()
    def each_accepted_mail_ran_once_or_is_there_or_was_handed_back_by_close(self) -> None:
        ran = [each for each in self.real.log if each.isdigit()]
        waiting = [each.name for each in (*self.model.rest, *self.model.box.all()) if each.name != "control"]
        assert len(ran) == len(set(ran))
        if self.model.state is not MailboxState.CLOSED:
            assert sorted([*ran, *waiting]) == sorted(self.model.accepted)
        else:
            assert not waiting


class TestProcessorAgainstItsModel(ProcessorMachine.TestCase):
    settings = settings(max_examples=tries(40), stateful_step_count=30, deadline=None)
