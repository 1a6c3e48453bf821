"""The stack of another thread."""

from __future__ import annotations

import threading
import traceback

from dispatcher.util.frames import _parsed, stack_of

from ...kit import TIMEOUT_S


def test_a_stack_is_as_traceback_tells_it_outermost_first() -> None:
    entered, opened = threading.Event(), threading.Event()

    def outer() -> None:
        inner()

    def inner() -> None:
        entered.set()
        opened.wait(TIMEOUT_S)

    thread = threading.Thread(target=outer)
    thread.start()
    assert entered.wait(TIMEOUT_S)

    stack = stack_of(thread.ident)
    opened.set()
    thread.join(TIMEOUT_S)

    assert stack is not None
    names = [frame.name for frame in stack]
    assert [name for name in names if name in ("outer", "inner", "wait")][:3] == ["outer", "inner", "wait"]
    assert names[0] == "_bootstrap"
    assert stack_of(thread.ident) is None


def test_the_callers_own_stack_ends_with_it() -> None:
    stack = stack_of(threading.get_ident())

    assert stack is not None
    own = [frame.name for frame in traceback.extract_stack()]
    assert [frame.name for frame in stack][: len(own)] == own


def test_a_thread_is_found_in_a_dump_of_all() -> None:
    lines = [
        "Thread 0x0000000000000010 (most recent call first):",
        '  File "/srv/caf\\xe9.py", line 7 in inner',
        '  File "/srv/app.py", line 3 in outer',
        "",
        "Current thread 0x0000000000000020 (most recent call first):",
        '  File "/srv/app.py", line 9 in main',
    ]

    stack = _parsed(lines, 0x10)

    assert stack is not None
    assert [(each.filename, each.lineno, each.name) for each in stack] == [
        ("/srv/app.py", 3, "outer"),
        ("/srv/café.py", 7, "inner"),
    ]
    assert _parsed(lines, 0x30) is None
