"""Programs that end without a stop: they end, at once, with exit code 0 and nothing on standard error."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

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
        dispatcher = started(AsyncDispatcher(), lambda event: dispatcher.event_handler.handle(event))
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
    "while a handler hangs": """
        entered = threading.Event()
        def hang(event):
            entered.set()
            threading.Event().wait()
        dispatcher = started(AsyncDispatcher(), hang)
        dispatcher.event_handler.handle(Event(Work.DO))
        assert entered.wait(30)
        """,
    "while a handler is watched": """
        entered = threading.Event()
        def hang(event):
            entered.set()
            threading.Event().wait()
        dispatcher = started(AsyncDispatcher(DispatcherConfig(handler_warn_after_s=1000)), hang)
        dispatcher.event_handler.handle(Event(Work.DO))
        assert entered.wait(30)
        """,
    "while it is idle": """
        dispatcher = started(AsyncDispatcher(), lambda event: None)
        """,
    "with an exit hook that posts": """
        dispatcher = started(AsyncDispatcher(), lambda event: None)
        atexit.register(lambda: dispatcher.event_handler.handle(Event(Work.DO)))
        """,
    "with an exit hook that stops": """
        got = []
        dispatcher = started(AsyncDispatcher(), got.append)
        dispatcher.event_handler.handle(Event(Work.DO))
        def end():
            dispatcher.stop()
            assert len(got) == 1 and dispatcher.is_stopped()
        atexit.register(end)
        """,
    "without a start": """
        dispatcher = AsyncDispatcher()
        dispatcher.event_handler.handle(Event(Work.DO))
        """,
    "with a multi dispatcher": """
        dispatcher = started(MultiDispatcher(), lambda event: dispatcher.event_handler.handle(event))
        dispatcher.event_handler.handle(Event(Work.DO))
        """,
    "with an event dispatcher": """
        dispatcher = EventDispatcher(lambda event: dispatcher.handle(event))
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
