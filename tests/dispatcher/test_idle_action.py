"""An idle action makes work for a dispatcher that has none, as a simulation does that jumps to what comes next."""

from __future__ import annotations

import threading

from dispatcher import AsyncDispatcher, Event

from ..kit import TIMEOUT_S, Work


class Simulation:
    """Posts `length` events, each when the one before has been handled, and does nothing in some turns between."""

    def __init__(self, length: int) -> None:
        self.left = length
        self.handled: list[int] = []
        self.had_work: list[bool] = []
        self.on_handler_thread: list[bool] = []
        self.done = threading.Event()
        self.dispatcher = AsyncDispatcher(name="simulation", idle_action=self.go_on)
        self.dispatcher.register(Work, lambda event: self.handled.append(self.left))

    def go_on(self) -> bool:
        self.had_work.append(self.dispatcher.has_work())
        self.on_handler_thread.append(self.dispatcher.is_handler_thread())
        if not self.left:
            self.done.set()
            return False
        self.left -= 1
        if self.left % 3:
            self.dispatcher.post(Event(Work.DO))
            assert self.dispatcher.has_work()
        return True


def test_events_of_the_idle_action_are_handled_on_its_thread_before_it_is_called_again() -> None:
    simulation = Simulation(30)
    with simulation.dispatcher:
        assert simulation.done.wait(TIMEOUT_S)
        assert not simulation.dispatcher.is_handler_thread()

    assert simulation.handled == [left for left in reversed(range(30)) if left % 3]
    assert not any(simulation.had_work)
    assert all(simulation.on_handler_thread)


def test_a_mail_is_work() -> None:
    dispatcher = AsyncDispatcher()
    before = dispatcher.has_work()

    dispatcher.mailbox_executor.execute(lambda: None, "mail")

    assert (before, dispatcher.has_work()) == (False, True)
