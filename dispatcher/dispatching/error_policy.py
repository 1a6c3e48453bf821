"""The reaction to a handler that raises, and to an event without a handler (invariant 6)."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from dispatcher.routes import RoutingTable
from dispatcher.service import Service

log = logging.getLogger("dispatcher.async_dispatcher")


class ErrorPolicy:
    """Counts and logs a failed event, then follows the `on_error` of its class. Handler thread."""

    def __init__(self, dispatcher: Service, routes: RoutingTable, exit_action: Callable[[int], Any]) -> None:
        self._dispatcher = dispatcher
        self._routes = routes
        self._exit_action = exit_action

    def failed(self, event: Any, error: BaseException) -> tuple[str, BaseException]:
        """The event's handler raised `error`, or it has none. Returns the outcome and the error for the journal."""
        event_type = getattr(event, "type", None)
        route = self._routes.find(event_type)
        if not route.registered:
            error = self._routes.unregistered(event_type)
        route.failed += 1
        name = self._dispatcher.name
        log.error("%s: handling %r failed", name, event, exc_info=error)
        if route.on_error != "continue":
            self._dispatcher.note_failure(error)
            if route.on_error == "exit" and not sys.is_finalizing():
                log.critical("%s: exiting the process, as registered for this event class", name)
                # On a thread of its own: exit hooks may stop this dispatcher, and the stop waits for this handler.
                threading.Thread(target=self._exit_action, args=(-1,), name=f"{name}-exit", daemon=True).start()
            self._dispatcher.stop()
        return "failed" if route.registered else "unregistered", error
