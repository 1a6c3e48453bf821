"""Programs that end without a stop: they handle what is queued, and end with exit code 0, without a word."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dispatcher.journal import recover, verify

pytestmark = pytest.mark.long

TIMEOUT_S = 180.0

PROLOGUE = """
import atexit, sys, threading
from enum import Enum
from dispatcher import AsyncDispatcher, DispatcherConfig, Event, EventDispatcher, MultiDispatcher

class Work(Enum):
    DO = 1

def started(dispatcher, handler):
    dispatcher.register(Work, handler)
    dispatcher.init()
    dispatcher.start()
    return dispatcher
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PROLOGUE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


SCRIPTS = {
    "while events flow": """
        import logging
        logging.disable()  # it warns of what is left, as it should
        config = DispatcherConfig(drain_timeout_s=0.1)
        dispatcher = started(AsyncDispatcher(config), lambda event: dispatcher.event_handler.handle(event))
        for _ in range(100):
            dispatcher.event_handler.handle(Event(Work.DO))
        """,
    "while a producer floods it": """
        import logging
        logging.disable()  # it warns of a full queue, as it should
        dispatcher = started(AsyncDispatcher(DispatcherConfig(queue_capacity=5)), lambda event: None)
        def produce():
            while True:
                dispatcher.event_handler.handle(Event(Work.DO))
        threading.Thread(target=produce, daemon=True).start()
        """,
    "while a handler is watched": """
        entered = threading.Event()
        def hang(event):
            entered.set()
            threading.Event().wait()
        dispatcher = started(AsyncDispatcher(DispatcherConfig(handler_warn_after_s=1000, at_exit="warn")), hang)
        dispatcher.event_handler.handle(Event(Work.DO))
        assert entered.wait(30)
        """,
    "with an exit hook that posts": """
        dispatcher = started(AsyncDispatcher(), lambda event: None)
        atexit.register(lambda: dispatcher.event_handler.handle(Event(Work.DO)))
        """,
    "without a start": """
        dispatcher = AsyncDispatcher()
        dispatcher.event_handler.handle(Event(Work.DO))
        """,
    "with an event dispatcher": """
        dispatcher = EventDispatcher(lambda event: None)
        dispatcher.init()
        dispatcher.start()
        dispatcher.handle(Event(Work.DO))
        """,
    "by sys.exit in the middle of a with block": """
        with AsyncDispatcher() as dispatcher:
            dispatcher.register(Work, lambda event: None)
            dispatcher.event_handler.handle(Event(Work.DO))
            sys.exit(0)
        """,
    "by the end of what referred to it": """
        def use():
            dispatcher = started(AsyncDispatcher(), lambda event: None)
            dispatcher.event_handler.handle(Event(Work.DO))
        use()
        import gc
        gc.collect()
        """,
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=[name.replace(" ", "-") for name in SCRIPTS])
def test_a_program_ends_quietly(script: str) -> None:
    ended = run(script)

    assert (ended.returncode, ended.stderr) == (0, "")


LEFT = """
        import time
        release = threading.Event()
        def handle(event):
            release.wait(30)
            print("handled", flush=True)
        dispatcher = make(DispatcherConfig(at_exit={at_exit!r}, drain_timeout_s={drain_timeout_s}))
        dispatcher.register(Work, handle)
        dispatcher.init()
        dispatcher.start()
        for _ in range(100):
            dispatcher.post(Event(Work.DO))
        threading.Timer(0.05, release.set).start()
        """
MAKE_ONE = """
        def make(config):
            return AsyncDispatcher(config, name="central")
        """
MAKE_PARTITIONS = """
        def make(config):
            return MultiDispatcher(config, name="central", partitions=3)
        """


@pytest.mark.parametrize("make", [MAKE_ONE, MAKE_PARTITIONS], ids=["one", "partitions"])
def test_a_program_that_ends_handles_what_is_queued_first(make: str) -> None:
    ended = run(textwrap.dedent(make) + textwrap.dedent(LEFT.format(at_exit="drain", drain_timeout_s=30)))

    assert (ended.returncode, ended.stdout.count("handled"), ended.stderr) == (0, 100, "")


@pytest.mark.parametrize(
    ("at_exit", "said"),
    [
        ("discard", r"central: stop discarded (99|100) queued events: \1 Work.DO"),
        ("warn", r"central: the program ends without stop\(\), and (99|100) events are not handled"),
    ],
)
def test_at_exit_chooses_what_becomes_of_the_queue(at_exit: str, said: str) -> None:
    hanging = LEFT.format(at_exit=at_exit, drain_timeout_s=0.1).replace(
        "threading.Timer(0.05, release.set).start()", ""
    )
    ended = run(textwrap.dedent(MAKE_ONE) + textwrap.dedent(hanging))

    assert (ended.returncode, ended.stdout) == (0, "")
    assert re.search(said, ended.stderr)


def test_a_daemon_around_the_dispatcher_is_stopped_whole() -> None:
    ended = run("""
        from dispatcher import CompositeService, Service

        class Database(Service):
            def service_stop(self):
                print("the database stops", flush=True)

        daemon = CompositeService("daemon")
        dispatcher = AsyncDispatcher()
        dispatcher.register(Work, lambda event: print("handled", flush=True))
        for service in (Database(), dispatcher):
            daemon.add_service(service)
        daemon.init()
        daemon.start()
        dispatcher.post(Event(Work.DO))
        """)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "handled\nthe database stops\n", "")


def test_events_in_a_journal_are_handled_before_the_program_ends(tmp_path: Path) -> None:
    ended = run(f"""
        from dataclasses import dataclass
        from dispatcher import JournalConfig, JournalWriter

        @dataclass
        class Posted:
            type: Work
            number: int

        journal = JournalWriter({str(tmp_path / "journal")!r}, JournalConfig(write_ahead=True))
        dispatcher = AsyncDispatcher(journal=journal)
        dispatcher.register(Work, lambda event: None, events=Posted)
        dispatcher.init()
        dispatcher.start()
        for number in range(100):
            dispatcher.post(Posted(Work.DO, number))
        """)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert verify(tmp_path / "journal").problems == ()
    assert not recover(tmp_path / "journal").accepted


def test_on_error_exit_ends_the_process_with_255() -> None:
    ended = run("""
        def fail(event):
            raise RuntimeError("broken")
        dispatcher = AsyncDispatcher()
        dispatcher.register(Work, fail, on_error="exit")
        dispatcher.init()
        dispatcher.start()
        dispatcher.event_handler.handle(Event(Work.DO))
        threading.Event().wait(30)
        """)

    assert ended.returncode == 255
