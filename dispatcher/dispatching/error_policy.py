"""The reaction to a handler that raises, and to an event without a handler (invariant 6)."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from dispatcher.dispatching.failures import Failures
from dispatcher.routes import Route, RoutingTable
from dispatcher.service import Service
from dispatcher.util.foreign import tell, text_of, type_of
from dispatcher.util.threads import try_to_start

log = logging.getLogger("dispatcher.async_dispatcher")


class ErrorPolicy:
    """Counts and logs a failed event, then follows the `on_error` of its class. Handler thread, but for `failures`."""

    def __init__(self, dispatcher: Service, routes: RoutingTable, exit_action: Callable[[int], Any]) -> None:
        self._dispatcher = dispatcher
        self._routes = routes
        self._exit_action = exit_action
        self.failures = Failures()  # the last ones; it says who may touch it
        self.is_ending = False  # `end` is to be called; handler thread
        self.is_exiting = False  # it will end the process; handler thread
        self._ended_by: BaseException | None = None  # the error with which `end` is to be called; handler thread

    def failed(
        self, event: Any, error: BaseException, taken_by: Route | None = None, *, ends_later: bool = False
    ) -> tuple[str, BaseException]:
        """The event's handler raised `error`, or it has none. Returns the outcome and the error for the journal.

        `taken_by`: the route whose coroutine raised it; its handler may have been unregistered since. `ends_later`: the
        caller calls `end` once the event has its row, if the event `is_ending` the dispatcher.
        It counts the event first, and raises nothing, whatever the event, a logging handler or a listener raises.
        """
        event_type = type_of(event)
        route = taken_by or self._routes.find(event_type)
        route.failed += 1
        is_handled = route.registered or taken_by is not None
        if not is_handled:
            error = self._routes.unregistered(event_type)
        self.failures.add(event, error)
        name = self._dispatcher.name
        tell(log, logging.ERROR, "%s: handling %s failed", name, text_of(event), error=error)
        if route.on_error != "continue":
            self._dispatcher.note_failure(error)
            self._ended_by = self._ended_by or error
            self.is_ending, self.is_exiting = True, self.is_exiting or route.on_error == "exit"
            if not ends_later:
                self.end()
        return "failed" if is_handled else "unregistered", error

    def end(self) -> None:
        """Stop the dispatcher, and, if it `is_exiting`, end the process. Raises nothing."""
        exits, error = self.is_exiting, self._ended_by
        self.is_ending, self.is_exiting, self._ended_by = False, False, None
        try:
            self._end(error, exits=exits)
        except BaseException as raised:
            tell(log, logging.CRITICAL, "%s: the stop failed", self._dispatcher.name, error=raised)

    def _end(self, error: BaseException | None, *, exits: bool) -> None:
        name = self._dispatcher.name
        if exits and not sys.is_finalizing():
            tell(log, logging.CRITICAL, "%s: exiting the process, as registered for this event class", name)
            # On a thread of its own: exit hooks may stop this dispatcher, and the stop waits for this handler.
            exiting = threading.Thread(target=self._exit_action, args=(-1,), name=f"{name}-exit", daemon=True)
            if not try_to_start(exiting):
                self._exit_action(-1)
        if error is not None:
            self._dispatcher.stop_on_failure(error)
