"""Mails per second from another thread, and turns per second of a default action."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from core.dispatchers import config
from core.peers import start_taking
from measure import RatePart, RateTable, Row, Settings

from dispatcher import AsyncDispatcher
from dispatcher.mailbox import MailboxController, MailboxProcessor


class Ticker:
    """A command, and a default action, that counts."""

    def __init__(self, last: int = 0) -> None:
        self.ticks = 0
        self._last = last

    def tick(self) -> None:
        self.ticks += 1

    def turn(self, controller: MailboxController) -> None:
        self.ticks += 1
        if self.ticks == self._last:
            controller.all_actions_completed()


def execute(count: int) -> float:
    ticker, done = Ticker(), threading.Event()
    with AsyncDispatcher(config()) as dispatcher:
        send, tick = dispatcher.mailbox_executor.execute, ticker.tick
        started = time.perf_counter()
        for _ in range(count):
            send(tick, "tick")
        send(done.set, "done")
        done.wait()
        took = time.perf_counter() - started
    assert ticker.ticks == count
    return took


def callables_over_a_queue(count: int) -> float:
    """The same by hand: a thread that calls what it takes from a queue."""
    ticker = Ticker()
    waiting: queue.SimpleQueue[object] = queue.SimpleQueue()
    thread = start_taking(waiting, lambda command: command())
    put, tick = waiting.put, ticker.tick
    started = time.perf_counter()
    for _ in range(count):
        put(tick)
    put(None)
    thread.join()
    took = time.perf_counter() - started
    assert ticker.ticks == count
    return took


def thread_pool(count: int) -> float:
    ticker, pool = Ticker(), ThreadPoolExecutor(1)
    pool.submit(int).result()  # its thread starts with the first task
    submit, tick = pool.submit, ticker.tick
    started = time.perf_counter()
    for _ in range(count):
        submit(tick)
    pool.shutdown()
    took = time.perf_counter() - started
    assert ticker.ticks == count
    return took


def turns(count: int) -> float:
    """On the calling thread, which is the mailbox thread."""
    ticker = Ticker(count)
    processor = MailboxProcessor(ticker.turn)
    started = time.perf_counter()
    processor.run_mailbox_loop()
    took = time.perf_counter() - started
    assert ticker.ticks >= count
    return took


def method_calls(count: int) -> float:
    """The limit of a default action: a loop that calls it and looks at nothing."""
    ticker = Ticker()
    tick = ticker.tick
    started = time.perf_counter()
    while ticker.ticks != count:
        tick()
    return time.perf_counter() - started


def mailboxes(settings: Settings) -> RatePart:
    mails = [
        Row("execute", "mailbox_executor.execute", settings.count(500_000), execute),
        Row("simple", "callables over a queue.SimpleQueue", settings.count(500_000), callables_over_a_queue),
        Row("pool", "ThreadPoolExecutor(1).submit", settings.count(60_000), thread_pool),
    ]
    actions = [
        Row("turns", "default action of a MailboxProcessor", settings.count(1_000_000), turns),
        Row("calls", "a loop that calls a method", settings.count(1_000_000), method_calls),
    ]
    return RatePart(
        RateTable("mail", "Mails per second, from one other thread", mails),
        RateTable("action", "Turns per second of a default action", actions),
    )
