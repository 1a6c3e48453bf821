"""Stacks: what the handler thread is doing now, where its time goes, and where all threads are."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import dispatcher
from dispatcher.ops.dispatchers import running_now
from dispatcher.util.foreign import plain_text
from dispatcher.util.frames import stack_of
from dispatcher.view import DispatcherView

OURS: Final = f"{Path(dispatcher.__file__).parent}/"
MOST_SAMPLES: Final = 100
MOST_MS: Final = 1000
_ATTEMPTS: Final = 3


def stack_items(frames: Iterable[traceback.FrameSummary]) -> list[dict[str, Any]]:
    """Frames as JSON, in their order. It reads the lines of their files."""
    return [_frame_item(frame.filename, frame.lineno, frame.name, frame.line) for frame in frames]


def running_with_stack(view: DispatcherView) -> dict[str, Any] | None:
    """What runs, with its stack; None: nothing does."""
    running, stack = view.running(), []
    for _ in range(_ATTEMPTS):
        if running is None:
            return None
        stack = view.stack()
        again = view.running()
        if again is not None and (again.kind, round(again.since, 3)) == (running.kind, round(running.since, 3)):
            break
        running = again  # another one began meanwhile: the stack may be of either
    shown = running_now(running)
    return None if shown is None else {**shown, "stack": stack_items(stack)}


def sample_stacks(
    view: DispatcherView, samples: int, interval_ms: int, sleep: Callable[[float], None] = time.sleep
) -> dict[str, Any]:
    """The stacks of the handler thread, folded: each different one with its count, the most frequent first.

    Blocks for `samples` times `interval_ms`. `idle`: samples in which the thread handled nothing.
    """
    counts: Counter[tuple[tuple[str, int | None, str], ...]] = Counter()
    idle = 0
    for number in range(samples):
        if number:
            sleep(interval_ms / 1000)
        if view.running() is None:
            idle += 1
        else:
            counts[tuple((frame.filename, frame.lineno, frame.name) for frame in view.stack())] += 1
    stacks = [
        {
            "count": count,
            "stack": stack_items(traceback.FrameSummary(file, line, name) for file, line, name in folded),
        }
        for folded, count in sorted(counts.items(), key=lambda item: -item[1])
    ]
    return {"samples": samples, "interval_ms": interval_ms, "idle": idle, "stacks": stacks}


def thread_items() -> list[dict[str, Any]]:
    """Every thread of the process with its stack, by name."""
    items = []
    for thread in sorted(threading.enumerate(), key=lambda each: each.name):
        items.append(
            {
                "name": plain_text(thread.name),
                "ident": thread.ident,
                "native_id": thread.native_id,
                "daemon": thread.daemon,
                "stack": stack_items(stack_of(thread.ident) or ()),
            }
        )
    return items


def _frame_item(file: str, line: int | None, function: str, code: str | None) -> dict[str, Any]:
    item: dict[str, Any] = {
        "file": plain_text(file),
        "line": line,
        "function": plain_text(function),
        "code": plain_text(code or ""),
    }
    if file.startswith(OURS):
        item["internal"] = True
    return item
