"""A process whose posts interrupt each other: `python -m tests.dispatcher._posts_from_anywhere SECONDS RATE FOLDER`.

For SECONDS with each kind of dispatcher, a timer's signal handler posts RATE times a second, whatever the main thread
is doing: it posts as well, as does another thread. Events post when they are destroyed, cyclic garbage posts from
`__del__` and from weakref callbacks, and the garbage collector runs often. Prints one JSON object for each kind: what
the producers were told, and what the dispatcher counts.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import logging
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from dispatcher import AsyncDispatcher, DispatcherConfig, JournalConfig, MultiDispatcher, QueueFullError
from dispatcher.journal import JournalWriter

TIMEOUT_S = 20.0
FEWEST_SIGNALS = 4
_QUIET = {"measure_times": "none"}
KINDS: dict[str, dict[str, Any]] = {
    "none": _QUIET,
    "sampled": {"measure_times": "sampled"},
    "all": {"measure_times": "all"},
    "block": {"queue_capacity": 20},
    "timeout": {"queue_capacity": 20, "queue_full_timeout_s": 0.001},
    "reject": {"queue_capacity": 20, "queue_full_policy": "reject"},
    "drop_oldest": {"queue_capacity": 20, "queue_full_policy": "drop_oldest"},
    "coalesce": {},
    "coalesce, drop_oldest": {"queue_capacity": 20, "queue_full_policy": "drop_oldest"},
    "journal": {},
    "write-ahead": {},
    "write-ahead, sync": {"queue_capacity": 20},
    "group": {"queue_capacity": 20},
}


class Kind(Enum):
    TICK = 1


class Key:
    """A key whose methods are written in Python, so that a signal handler can interrupt them."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.number == other.number


@dataclass(eq=False)
class Tick:
    number: int
    type: Kind = Kind.TICK

    @property
    def lock_key(self) -> int:
        return self.number


class Posts:
    """Counts what the producers are told: the appends are atomic, so any thread and any signal handler may post."""

    def __init__(self, dispatcher: AsyncDispatcher | MultiDispatcher) -> None:
        self._dispatcher = dispatcher
        self._handle = dispatcher.event_handler.handle
        self.answers: list[bool] = []  # any thread appends
        self.from_signals: list[bool] = []  # main thread only
        self.from_garbage: list[bool] = []  # any thread appends

    def post(self, event: Any) -> bool:
        answer = self._handle(event)
        self.answers.append(answer)
        return answer

    def on_signal(self, *_: object) -> None:
        event = Tick(-1)
        self.from_signals.append(self.post(Dying(self) if len(self.from_signals) % 2 else event))

    def from_garbage_collection(self, *_: object) -> None:
        with contextlib.suppress(QueueFullError):
            answer = self._dispatcher.post_nowait(Tick(-2))
            self.answers.append(answer)
            self.from_garbage.append(answer)


class Dying(Tick):
    """Posts another event when it is destroyed."""

    def __init__(self, posts: Posts) -> None:
        super().__init__(-3)
        self._posts = posts

    def __del__(self) -> None:
        self._posts.from_garbage_collection()


class Cycle:
    """Garbage that only the collector finds. It posts when it is destroyed."""

    def __init__(self, posts: Posts) -> None:
        self._posts = posts
        self._self = self

    def __del__(self) -> None:
        self._posts.from_garbage_collection()


def make(kind: str, folder: Path) -> AsyncDispatcher | MultiDispatcher:
    config = DispatcherConfig(drain_timeout_s=TIMEOUT_S, **KINDS[kind])
    if kind == "group":
        group = MultiDispatcher(config, name=kind, partitions=2)
        group.register(Kind, lambda _: None)
        return group
    journal = None
    if kind == "journal" or kind.startswith("write-ahead"):
        durability = "sync" if kind.endswith("sync") else "none"
        settings = JournalConfig(write_ahead=kind != "journal", durability=durability, segment_bytes=65_536)
        journal = JournalWriter(folder / kind, settings)
    dispatcher = AsyncDispatcher(config, name=kind, journal=journal)
    is_coalescing = kind.startswith("coalesce")
    dispatcher.register(
        Kind,
        lambda _: None,
        coalesce_by=(lambda event: Key(event.number % 7)) if is_coalescing else None,
        events=(Tick,) if kind.startswith("write-ahead") else (),
    )
    return dispatcher


def run(kind: str, seconds: float, rate: float, folder: Path) -> dict[str, Any]:
    dispatcher = make(kind, folder)
    posts = Posts(dispatcher)
    refs: list[Any] = []
    with dispatcher:
        others = threading.Thread(target=_post_until, args=(posts, ends := threading.Event()), daemon=True)
        others.start()
        signal.signal(signal.SIGALRM, posts.on_signal if not kind.startswith("write-ahead") else _plain(posts))
        signal.setitimer(signal.ITIMER_REAL, 1 / rate, 1 / rate)
        end = time.monotonic() + seconds
        number = 0
        # A busy machine delivers few of the signals.
        while (now := time.monotonic()) < end or (len(posts.from_signals) < FEWEST_SIGNALS and now < end + TIMEOUT_S):
            number += 1
            cycle = Cycle(posts)
            if number % 3 == 0:
                refs[-10:] = [*refs[-9:], weakref.ref(cycle, posts.from_garbage_collection)]
            del cycle
            posts.post(Tick(number))
            if number % 50 == 0:
                gc.collect()
        ends.set()
        others.join(TIMEOUT_S)
        gc.collect()
        is_drained = dispatcher.await_drained(TIMEOUT_S)
    signal.setitimer(signal.ITIMER_REAL, 0)  # only now: posts interrupt the stop, too
    gc.collect()
    of = [part.stats() for part in (dispatcher.partitions if isinstance(dispatcher, MultiDispatcher) else [dispatcher])]
    return {
        "kind": kind,
        "is_drained": is_drained,
        "hangs": others.is_alive(),
        "accepted": sum(posts.answers),
        "refused": len(posts.answers) - sum(posts.answers),
        "handled": sum(each.handled for each in of),
        "failed": sum(each.failed for each in of),
        "discarded": sum(each.discarded for each in of),
        "rejected": sum(sum(each.rejected.values()) for each in of),
        "from_signals": len(posts.from_signals),
        "accepted_from_signals": sum(posts.from_signals),
        "from_garbage": len(posts.from_garbage),
    }


def _plain(posts: Posts) -> Callable[..., None]:
    """In write-ahead mode, only declared classes are accepted."""
    return lambda *_: posts.from_signals.append(posts.post(Tick(-1)))


def _post_until(posts: Posts, ends: threading.Event) -> None:
    while not ends.is_set():
        posts.post(Tick(-4))


def main(seconds: float, rate: float, folder: Path) -> None:
    logging.disable(logging.CRITICAL)
    gc.set_threshold(100)
    sys.setswitchinterval(0.0002)  # signal handlers run when the main thread has its turn
    for kind in KINDS:
        faulthandler.dump_traceback_later(seconds + 3 * TIMEOUT_S, exit=True)  # says where a deadlock is
        print(json.dumps(run(kind, seconds, rate, folder)), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
