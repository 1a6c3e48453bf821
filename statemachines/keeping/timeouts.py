"""The timeouts of entities' states, on the timers of their dispatcher.

Each timeout of an entity's present state is an event posted later under a key of its own. In write-ahead mode the
journal keeps it: the next run goes on with the remaining time. A timer is scheduled before the state changes, since the
journal may refuse it, and that of the state before is cancelled afterwards.

A timer may have posted its event already when its state is left: then the event is late and is dropped as it comes. In
the run that posted it, it is known by its identity. Of an earlier run's events only type and entity are known.

Threading: an entity's item belongs to the thread of its events. What threads share are dicts and sets, each with one
call for a change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from dispatcher.errors import EventRefusedError, JournalError
from dispatcher.util.foreign import tell
from statemachines.declared import Timeout, Transition

if TYPE_CHECKING:
    from dispatcher import Dispatcher

log: logging.Logger = logging.getLogger(__name__)

KEYS: Final = "timeout/"
"""All keys begin with it: `timeout/Device/ONLINE/TIMED_OUT/device-1`."""


class _Timer(NamedTuple):
    """What waits for a timeout of an entity's present state."""

    key: str
    cancel: Callable[[], bool]
    event: Any
    """The event that it posts; None: an earlier run has made it."""
    type: str
    is_restored: bool = False
    """The state is of an earlier run, which may have posted an event of the timeout already."""


class EntityTimeouts:
    """The timers of the entities of one kind."""

    def __init__(
        self,
        machine: str,
        timeouts: Iterable[Timeout],
        transitions: Iterable[Transition],
        dispatcher: Dispatcher,
        make_event: Callable[[Any, str], Any],
    ) -> None:
        self._dispatcher = dispatcher  # never changes, like all fields that do not say otherwise
        self._make_event = make_event
        self._prefix = f"{KEYS}{quote(machine, safe='')}/"
        self._by_state: dict[str, list[Timeout]] = {}
        for each in timeouts:
            self._by_state.setdefault(each.state._name_, []).append(each)
        self._types = {id(each.event) for some in self._by_state.values() for each in some}
        self._accepted = {(row.from_state._name_, row.event._name_) for row in transitions}
        self._timers: dict[str, list[_Timer]] = {}  # by entity: of its present state; not if that has no timeout
        self._sealed: dict[str, list[_Timer]] = {}  # by entity: of the state that its transition in progress enters
        self._late: dict[int, Any] = {}  # events of this run, by their ids, posted before their state was left
        self._left: set[tuple[str, str]] = set()  # entity and type: an earlier run may have posted such an event
        self._unread: set[str] = set()  # restored entities whose timers were not looked up yet

    def seal(self, entity: str, after: Enum, *, is_left: bool) -> None:
        """Schedule the timeouts of the state to enter.

        Raises:
            Exception: what the event's maker or the dispatcher's `post_after` raises, such as a journal that cannot
                keep the event. Nothing new is scheduled then.
        """
        if is_left or (after._name_ in self._by_state and entity not in self._timers):  # or: it begins and stays
            self._sealed[entity] = self._scheduled(entity, self._by_state.get(after._name_, ()))

    def _scheduled(self, entity: str, timeouts: Iterable[Timeout], *, is_restored: bool = False) -> list[_Timer]:
        timers: list[_Timer] = []
        try:
            for each in timeouts:
                event = self._make_event(each.event, entity)
                key = self._key(entity, each)
                handle = self._dispatcher.post_after(each.seconds, event, key=key)
                timers.append(_Timer(key, handle.cancel, event, each.event._name_, is_restored))
        except EventRefusedError as error:  # it stops: the next start schedules what is missing
            tell(log, logging.DEBUG, "%s: no timeout: %s", entity, error)
        except BaseException:
            for timer in timers:
                _cancel(timer)
            raise
        return timers

    def _key(self, entity: str, timeout: Timeout) -> str:
        return f"{self._prefix}{timeout.state._name_}/{timeout.event._name_}/{entity}"

    def commit(self, entity: str, event: Any) -> None:
        """The transition on the event has ended; None: it failed. The timers of a state that it has left end."""
        if event is not None and id(event.type) in self._types:
            self._handled(entity, event)
        timers = self._sealed.pop(entity, None)
        if timers is not None:
            self._end(entity, {timer.key for timer in timers})
            if timers:
                self._timers[entity] = timers

    def forget(self, entity: str) -> None:
        """The entity is no longer in its state."""
        self._end(entity, ())

    def _end(self, entity: str, replaced: Container[str]) -> None:
        """`replaced`: keys that newer timers have taken."""
        for timer in self._timers.pop(entity, ()):
            # Of an earlier run only the key is known: whether the timer had posted its event before, nothing tells.
            is_posted = (timer.event is None and timer.key in replaced) or not _cancel(timer)
            if is_posted and timer.event is not None:
                self._late[id(timer.event)] = timer.event
            if timer.is_restored and (is_posted or timer.event is not None):
                self._left.add((entity, timer.type))

    def is_late(self, entity: str, state: str | None, event: Any) -> bool:
        """Whether the event is of a timer whose state was left before it came. `state`: None if it has ended."""
        event_type = event.type
        if id(event_type) not in self._types:
            return False
        if self._late.pop(id(event), None) is not None:
            return True
        is_earlier, of = self._dispatcher.is_redelivering(), (entity, event_type._name_)
        if is_earlier and of in self._left:
            self._left.discard(of)
            return True
        may_be_late = is_earlier or self._dispatcher.attempt() > 1
        return may_be_late and (state or "", event_type._name_) not in self._accepted

    def _handled(self, entity: str, event: Any) -> None:
        """The timer of the event is done. One whose event has failed is not: the event may be handed out again."""
        name = event.type._name_
        timers = [each for each in self._timers.get(entity, ()) if each.type == name]
        for timer in timers:
            if timer.event is event or (timer.is_restored and self._dispatcher.is_redelivering()):
                if timer.event is not event:  # this run may have scheduled it once more
                    _cancel(timer)
                self._timers[entity] = [each for each in self._timers[entity] if each is not timer]

    def restore(self, states: Mapping[str, str]) -> None:
        """Before the start: take over the timers of an earlier run for these entities in their states, schedule those
        that are missing, and cancel those of other states. With partitions that waits for an entity's next event.

        Raises:
            JournalError: an event cannot be kept.
        """
        timed = {entity: state for entity, state in states.items() if state in self._by_state}
        for entity, state in timed.items():
            keys = {self._key(entity, each): each.event._name_ for each in self._by_state[state]}
            self._timers[entity] = [
                _Timer(key, partial(self._dispatcher.cancel, key), None, name, is_restored=True)
                for key, name in keys.items()
            ]
        try:
            found = self._dispatcher.scheduled(self._prefix)
        except JournalError:  # the lines of a partition may still move to another one
            self._unread.update(timed)
            return
        wanted = {timer.key for entity in timed for timer in self._timers[entity]}
        for key in found.keys() - wanted:
            self._dispatcher.cancel(key)
        for entity, state in timed.items():
            self._add_missing(entity, state, found)

    def look_up(self, entity: str, state: str) -> None:
        """Before an event of the entity: what `restore` could not do yet."""
        if self._unread and entity in self._unread:
            self._unread.discard(entity)
            self._add_missing(entity, state, self._dispatcher.scheduled(self._prefix))

    def _add_missing(self, entity: str, state: str, found: Container[str]) -> None:
        """A stop has prevented them, or an earlier release of the program did not have them."""
        missing = [each for each in self._by_state[state] if self._key(entity, each) not in found]
        if missing:
            names = {each.event._name_ for each in missing}
            kept = [timer for timer in self._timers[entity] if timer.type not in names]
            self._timers[entity] = kept + self._scheduled(entity, missing, is_restored=True)


def _cancel(timer: _Timer) -> bool:
    """False: it has posted its event."""
    try:
        return timer.cancel()
    except JournalError:
        return True  # it does not fire in this run; the journal's failure is reported elsewhere
