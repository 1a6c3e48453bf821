"""Interrupts code as a signal handler does: behind each call of a function in C, and where a function begins.

CPython looks for signals there, and at jumps back, and nowhere else. A profile function is called at just these places,
and what it raises is raised there.

From 3.14 on it is also called behind the `__enter__` of a `with`. A signal must not be looked for there, because a lock
would stay taken. Of all releases 3.14 does so (python/cpython#148874), which Python code cannot help.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupt(BaseException):
    """Of the signal handler."""


def interrupt(call: Callable[[], Any], at: int, handler: Callable[[], Any]) -> int:
    """Call `handler` at the place of that number, counted from 1, in `call`; returns how many places it has met.

    Places in this package's own code only. An Interrupt that the handler raises ends the call. The garbage of earlier
    calls and tests, whose finalizers have such places, is not collected meanwhile.
    """
    met = 0

    def look(frame: FrameType, what: str, called: object) -> None:
        nonlocal met
        if what == "c_return" and getattr(called, "__name__", "") == "__enter__":
            return
        if what not in ("c_return", "call") or not frame.f_globals.get("__name__", "").startswith("dispatcher."):
            return
        met += 1
        if met == at:
            sys.setprofile(None)
            handler()

    gc.disable()
    sys.setprofile(look)
    try:
        call()
    except Interrupt:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()
    return met


def end_call() -> None:
    raise Interrupt


def at_each_place(
    call: Callable[[], Any], handler: Callable[[], Any] = end_call, *, before: Callable[[], Any] = lambda: None
) -> int:
    """Interrupt one call after another, each at its next place, and one at none; returns how many were interrupted.

    `before`: what comes before each call.
    """
    at = 0
    while True:
        before()
        if interrupt(call, at + 1, handler) <= at:
            return at
        at += 1


_start = threading.Thread.start


class UnstartedThread(threading.Thread):
    """A thread whose start a signal handler interrupts before the system has created it."""

    def start(self) -> None:
        raise Interrupt

    def is_alive(self) -> bool:
        return False  # what `threading` says until it knows of the start


class HalfStartedThread(UnstartedThread):
    """A thread that runs although a signal handler's exception ended the call of its start."""

    def start(self) -> None:
        _start(self)  # a test may have replaced `threading.Thread` by this class
        raise Interrupt


INTERRUPTED_THREADS = (UnstartedThread, HalfStartedThread)
