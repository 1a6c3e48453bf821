"""Stacks: what the handler thread is doing now, where its time goes, and where all threads are."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import RootModel

import dispatcher
from dispatcher.ops.answers import Answer, Gets, Page, Real, UnixMs, Whole, event_name, whole
from dispatcher.ops.sight import WHOLE, Sight
from dispatcher.util.foreign import plain_text
from dispatcher.util.frames import stack_of
from dispatcher.util.units import milliseconds
from dispatcher.web.plain_answers import SOON, Refusal
from dispatcher.web.queries import number
from dispatcher.web.waiting import Kept

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.ops.shared import Ops
    from dispatcher.view import DispatcherView, RunningNow

OURS: Final = f"{Path(dispatcher.__file__).parent}/"
MOST_SAMPLES: Final = 100
MOST_MS: Final = 1000
_ATTEMPTS: Final = 3


class StackLine(Answer):
    """A line of a stack."""

    file: str
    line: Whole | None = None
    function: str = ""
    code: str | None = None
    internal: bool = False


class RunningHandler(Answer):
    """What a handler thread is doing."""

    kind: str = "event"
    event_class: str = ""
    event_type: str = ""
    entity: str | None = None
    description: str = ""
    since: UnixMs | None = None
    running_s: Real = 0.0
    stack: list[StackLine] = []

    @property
    def what(self) -> str:
        """The event's class, type and entity, or the mail's description."""
        if self.kind == "mail":
            return f"mail: {self.description}" if self.description else "a mail"
        return event_name(self.event_class, self.event_type) + (f" of {self.entity}" if self.entity else "")


class RunningOrNull(RootModel[RunningHandler | None]):
    """`/dispatchers/{name}/running`."""


class Stack(Answer):
    """A sampled stack, and the number of samples with it."""

    count: Whole
    stack: list[StackLine]


class Samples(Answer):
    """`/dispatchers/{name}/running?samples=N`: stacks, most frequent first."""

    stacks: list[Stack]
    samples: Whole
    interval_ms: Whole = 0
    idle: Whole = 0
    """Samples in which nothing ran."""


class Thread(Answer):
    """One of `/threads`."""

    name: str
    ident: Whole | None = None
    native_id: Whole | None = None
    daemon: bool = False
    stack: list[StackLine] = []


def running_now(running: RunningNow | None, sight: Sight = WHOLE, **more: Any) -> RunningHandler | None:
    """What runs, without its stack unless that is one of `more`.

    Those who may not see everything get no ids: the answer is made for many clients.
    """
    if running is None:
        return None
    if not sight.is_whole:
        running = replace(running, entity=None, description="")
    return RunningHandler(**asdict(replace(running, since=milliseconds(running.since))), **more)


def frames_of(frames: Iterable[traceback.FrameSummary]) -> list[StackLine]:
    """In their order. It reads the lines of their files."""
    return [_frame(frame.filename, frame.lineno, frame.name, frame.line) for frame in frames]


def running_with_stack(view: DispatcherView, sight: Sight = WHOLE) -> RunningHandler | None:
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
    return running_now(running, sight, stack=frames_of(stack))


def sample_stacks(
    view: DispatcherView, samples: int, interval_ms: int, sleep: Callable[[float], None] = time.sleep
) -> Samples:
    """The stacks of the handler thread, folded: each different one with its count, the most frequent first.

    Blocks for `samples` times `interval_ms`. `idle`: samples in which the thread handled nothing.
    """
    counts: Counter[tuple[tuple[str, int | None, str], ...]] = Counter()
    idle = 0
    for taken in range(samples):
        if taken:
            sleep(interval_ms / 1000)
        if view.running() is None:
            idle += 1
        else:
            counts[tuple((frame.filename, frame.lineno, frame.name) for frame in view.stack())] += 1
    stacks = [
        Stack(count=count, stack=frames_of(traceback.FrameSummary(file, line, name) for file, line, name in folded))
        for folded, count in sorted(counts.items(), key=lambda item: -item[1])
    ]
    return Samples(samples=samples, interval_ms=interval_ms, idle=idle, stacks=stacks)


def thread_items() -> list[Thread]:
    """Every thread of the process with its stack, by name."""
    return [
        Thread(
            name=plain_text(thread.name),
            ident=thread.ident,
            native_id=thread.native_id,
            daemon=thread.daemon,
            stack=frames_of(stack_of(thread.ident) or ()),
        )
        for thread in sorted(threading.enumerate(), key=lambda each: each.name)
    ]


def _frame(file: str, line: int | None, function: str, code: str | None) -> StackLine:
    is_ours = {"internal": True} if file.startswith(OURS) else {}
    return StackLine(
        file=plain_text(file), line=line, function=plain_text(function), code=plain_text(code or ""), **is_ours
    )


# -- endpoints ---------------------------------------------------------------------------------------------------------

samples = Kept(1.0)
"""Answers of `/running?samples=N`: one is made at a time in the whole process. Replaced in a forked child."""


def _after_fork() -> None:
    global samples
    samples = Kept(1.0)


os.register_at_fork(after_in_child=_after_fork)


async def _running(ops: Ops, request: Request) -> bytes:
    view = ops.view(request)
    count = number(request, "samples", None, 1, MOST_SAMPLES)
    if count is None:
        sight = await ops.sight(request)
        making = partial(ops.workers.run, partial(running_with_stack, view, sight))
        return await ops.running.make((view.name, id(view), sight.is_whole), making)
    interval_ms = number(request, "interval_ms", min(10, MOST_MS // count), 1, MOST_MS)
    if count * interval_ms > MOST_MS:
        raise Refusal(400, f"samples={count} times interval_ms={interval_ms} is more than {MOST_MS} ms")
    return await sampled(ops, view, count, interval_ms)


async def sampled(ops: Ops, view: DispatcherView, count: int, interval_ms: int) -> bytes:
    """The answer of /running with samples. Raises Refusal (429): another request takes samples."""
    key = view.name, id(view), count, interval_ms
    kept = samples.get(key)
    if kept is None and samples.is_making():
        raise Refusal(429, "another request takes samples", SOON)
    if kept is None:
        sampling = partial(sample_stacks, view, count, interval_ms)
        kept = await samples.make(key, lambda: ops.workers.run(sampling))
    return kept


async def _threads(ops: Ops, request: Request) -> bytes:
    async def make() -> Page[Thread]:
        return whole(await ops.workers.run(thread_items))

    return await ops.threads.make("threads", make)


GETS: Final[Gets] = {"/dispatchers/{name:path}/running": _running}
ADMIN_GETS: Final[Gets] = {"/threads": _threads}
