"""The stack of another thread."""

from __future__ import annotations

import threading
import traceback

from dispatcher.util.frames import _parsed, stack_of


def test_the_callers_own_stack_ends_with_it() -> None:
    stack = stack_of(threading.get_ident())

    assert stack is not None
    own = [frame.name for frame in traceback.extract_stack()]
    assert [frame.name for frame in stack][: len(own)] == own


def test_a_thread_that_does_not_run_has_no_stack() -> None:
    assert stack_of(threading.Thread().ident) is None


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
