"""The stack of another thread."""

from __future__ import annotations

import gc
import sys
import threading
import traceback

import pytest

from dispatcher.util.frames import _parsed, stack_of


def test_the_callers_own_stack_ends_with_it() -> None:
    stack = stack_of(threading.get_ident())

    assert stack is not None
    own = [frame.name for frame in traceback.extract_stack()]
    assert [frame.name for frame in stack][: len(own)] == own


def test_a_thread_that_does_not_run_has_no_stack() -> None:
    assert stack_of(threading.Thread().ident) is None


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="CPython 3.11 alone collects garbage amid such a call")
@pytest.mark.parametrize("is_enabled", [True, False])
def test_no_garbage_is_collected_while_frames_are_read(monkeypatch: pytest.MonkeyPatch, is_enabled: bool) -> None:
    """The process hung: see python/cpython#106883."""
    read, seen = sys._current_frames, []
    monkeypatch.setattr(sys, "_current_frames", lambda: seen.append(gc.isenabled()) or read())
    if not is_enabled:
        gc.disable()
    try:
        assert stack_of(threading.get_ident()) is not None
        assert (seen, gc.isenabled()) == ([False], is_enabled)
    finally:
        gc.enable()


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
