"""The end of a program that has not stopped its dispatchers: they drain, as `concurrent.futures` lets its pools do.

An `atexit` hook stops them once the main thread and all threads that are no daemons have ended. `at_exit` in the
configuration of a dispatcher says how. A hook that a program registers after a dispatcher's start runs before this one.
"""

from __future__ import annotations

import atexit
import logging
from typing import Final, Protocol

from dispatcher.posting_service import Core
from dispatcher.queue.flags import ABANDONED, FORKED
from dispatcher.service import Service, ServiceState
from dispatcher.util.figures import counted
from dispatcher.util.foreign import tell
from dispatcher.util.registry import Registry

log: logging.Logger = logging.getLogger("dispatcher.async_dispatcher")


class Running(Protocol):
    """An AsyncDispatcher."""

    name: str
    core: Core

    @property
    def parent(self) -> Service | None: ...

    def in_state(self, *states: ServiceState) -> bool: ...

    def stop(self) -> None: ...


# Dispatchers in the order of their starts. A handler thread keeps its own alive.
_started: Final[Registry[Running]] = Registry()


def note_start(dispatcher: Running) -> None:
    """The dispatcher starts: should it still run when the program ends, it is stopped. Any thread."""
    _started.add(dispatcher)


@atexit.register
def _end_all() -> None:
    """Stop what runs, the last started first, each with the daemon that it is part of."""
    is_interrupted = False
    for dispatcher in reversed(_started.all()):
        if not _is_running(dispatcher):  # or it was part of a daemon that was stopped before
            continue
        queue, policy, root = dispatcher.core.queue, dispatcher.core.at_exit, _root_of(dispatcher)
        left = queue.size() + len(queue.retrying)
        fields = {"dispatcher": dispatcher.name, "count": left}
        try:
            if policy == "warn":
                if left:
                    message = "%s: the program ends without stop(), and %s not handled"
                    tell(log, logging.WARNING, message, dispatcher.name, counted(left, "event", "is"), extra=fields)
                continue
            if policy == "discard" or is_interrupted:
                queue.shutdown.shut(ABANDONED)
                queue.shutdown.discard()
            elif left:
                message = "%s: the program ends without stop(); its %s handled first"
                tell(log, logging.INFO, message, dispatcher.name, counted(left, "event", "is"), extra=fields)
            root.stop()
        except KeyboardInterrupt:  # the stop has discarded what was queued; the others do so, too
            is_interrupted = True
        except BaseException as error:
            tell(log, logging.ERROR, "%s: could not be stopped at the end of the program", root.name, error=error)


def _is_running(dispatcher: Running) -> bool:
    return dispatcher.in_state(ServiceState.STARTED) and dispatcher.core.queue.phase != FORKED


def _root_of(dispatcher: Running) -> Running | Service:
    """The daemon that the dispatcher is part of, or itself."""
    root: Running | Service = dispatcher
    while (parent := root.parent) is not None and parent.in_state(ServiceState.STARTED):
        root = parent
    return root
