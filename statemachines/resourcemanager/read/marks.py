"""Which reports a publication has to make anew: what the recorder says has changed, and what follows from it.

Handler thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from statemachines.changes import Changed
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.rmappattempt import RMAppAttempt, RMAppAttemptState
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.machines.rmnode import RMNode
from statemachines.resourcemanager.machines.states import FINAL_STATES
from statemachines.resourcemanager.read.published import Published

if TYPE_CHECKING:
    from dispatcher.async_dispatcher import AsyncDispatcher

LOOK_EVERY: Final = 16
"""Reports between two looks at the clock."""
SORT_EVERY: Final = 64
_LOOKS_EVERY: Final = 1024
_MOST_SETTLING: Final = 8
_NOT_ADDED: Final = frozenset({RMAppAttemptState.NEW, RMAppAttemptState.SUBMITTED})


@dataclass(slots=True)
class Dirty:
    """What is to be reported, by id."""

    apps: dict[str, None] = field(default_factory=dict)  # dicts: in the order of the change
    attempts: dict[str, None] = field(default_factory=dict)  # applications whose attempts have changed
    containers: dict[str, None] = field(default_factory=dict)  # attempts whose containers have changed
    nodes: dict[str, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.apps) + len(self.attempts) + len(self.containers) + len(self.nodes)


class _Settling(NamedTuple):
    """Applications that wait until a dispatcher has handled its first `accepted` events.

    Once each dispatcher on the scheduler's path has, the scheduler has handled all events that their transitions posted
    for it. They are then reported again: what it does at one, such as dropping the asks of an ended attempt, may not
    lead to another transition.
    """

    accepted: int
    apps: set[str]


class ReportMarks:
    """Turns changes into what is to be reported. Its generators yield now and then, for the clock to be looked at."""

    def __init__(
        self, context: RMContext, scheduler_path: Sequence[AsyncDispatcher], tell_of: Callable[[str, Exception], None]
    ) -> None:
        """`scheduler_path`: see ResourceManager; `tell_of`: logs that a report has failed."""
        self._context = context
        self._scheduler_path = scheduler_path
        self._tell_of = tell_of
        self.published: Published = Published()
        self._taken_over: set[str] = set()  # attempts whose inherited containers were published as theirs
        self._settling = [deque[_Settling]() for _ in scheduler_path]  # for each dispatcher, oldest first

    def of_everything(self) -> Generator[None, None, Dirty]:
        """Begin anew, with all that there is."""
        context, dirty = self._context, Dirty()
        self._taken_over.clear()
        for waiting in self._settling:
            waiting.clear()
        self.published = Published()
        self.published.forgotten_apps = self._forgotten_apps()
        dirty.apps.update(dict.fromkeys(context.apps))
        dirty.attempts.update(dirty.apps)
        dirty.nodes.update(dict.fromkeys((*context.nodes, *context.inactive_nodes)))
        self._settle(set(context.apps))
        # A copy under the dict's own lock: the scheduler's thread adds containers at the same time.
        for number, container in enumerate(list(context.containers.values())):
            if number % LOOK_EVERY == 0:
                yield
            try:
                self._take_container(dirty, container, container.entity in context.containers)
            except Exception as error:
                self._tell_of(container.entity, error)
        return dirty

    def of(self, changed: Changed) -> Generator[None, None, Dirty]:
        """What is to be reported after these changes, which the caller has just taken."""
        dirty = Dirty()
        self.published.forgotten_apps = self._forgotten_apps()
        unreported = {
            id for machine, id in changed.forgotten if machine == RMApp.machine and not self.published.forget_app(id)
        }
        unsettled: set[str] = set()
        for number, operand in enumerate(changed.operands.values()):
            if number % SORT_EVERY == 0:
                yield
            try:
                self._mark(dirty, operand, unsettled)
                if isinstance(operand, RMApp) and operand.entity in unreported:
                    self.published.take_unreported_app(operand.submission.queue, operand.state.name)
            except Exception as error:
                self._tell_of(operand.entity, error)
        for number, (machine, id) in enumerate(changed.forgotten):
            if number % SORT_EVERY == 0:
                yield
            if machine == RMApp.machine:
                dirty.apps[id] = dirty.attempts[id] = None
                unsettled.discard(id)
            elif machine == RMAppAttempt.machine:
                self._taken_over.discard(id)
                self.published.forget_attempt(id)
                dirty.containers[id] = None
            elif machine == RMNode.machine:
                dirty.nodes[id] = None
        dirty.apps.update(dict.fromkeys(self._settle(unsettled)))
        return dirty

    def living_apps(self) -> Generator[None, None, list[str]]:
        """All applications that have not ended."""
        found = []
        for number, (id, app) in enumerate(list(self._context.apps.items())):
            if app.state not in FINAL_STATES:
                found.append(id)
            if number % _LOOKS_EVERY == 0:
                yield
        return found

    def _mark(self, dirty: Dirty, operand: Any, unsettled: set[str]) -> None:
        if type(operand) is RMContainer:
            self._take_container(dirty, operand, operand.entity in self._context.containers)
            dirty.apps[operand.application] = None
            dirty.nodes[operand.node] = None
        elif isinstance(operand, RMAppAttempt):
            self._mark_attempt(dirty, operand)
        elif isinstance(operand, RMApp):
            dirty.apps[operand.entity] = None
            if not operand.attempts:
                dirty.attempts[operand.entity] = None
            unsettled.add(operand.entity)
        elif isinstance(operand, RMNode):
            dirty.nodes[operand.entity] = None

    def _mark_attempt(self, dirty: Dirty, attempt: RMAppAttempt) -> None:
        app = attempt.app
        dirty.apps[app.entity] = dirty.attempts[app.entity] = None
        if attempt.number == 1 or not app.submission.keep_containers_across_attempts or attempt.state in _NOT_ADDED:
            return
        # The scheduler has given it the containers of the attempt before, without a transition of theirs.
        if attempt.entity not in self._taken_over and attempt.entity in self._context.attempts:
            self._taken_over.add(attempt.entity)
            for container in self._context.scheduler.live_containers(attempt.entity):
                self._take_container(dirty, container, container.entity in self._context.containers)

    def _take_container(self, dirty: Dirty, container: RMContainer, is_live: bool) -> None:
        dirty.containers[container.attempt] = None
        app, was_moved = self._context.apps.get(container.application), False
        queue = app.submission.queue if app is not None else None
        if container.attempt != container.maker:  # it was taken over, and may be published as another attempt's
            others = [each.entity for each in app.attempts if each.entity != container.attempt] if app else ()
            self.published.take_queue(others, queue)
            for attempt_id in self.published.take_from(others, container.entity):
                dirty.containers[attempt_id] = None
                was_moved = True
        self.published.take_container(container, is_live, queue, was_moved=was_moved)

    def _forgotten_apps(self) -> dict[str, int]:
        """Applications that are no longer kept, by state."""
        machines = self._context.recorder.machines.get(RMApp.machine)
        return dict(machines.forgotten) if machines is not None else {}

    def _settle(self, apps: set[str]) -> set[str]:
        """Let these applications wait for the scheduler; returns those for which it has handled all events."""
        for dispatcher, waiting in zip(self._scheduler_path, self._settling, strict=True):
            stats = dispatcher.stats()
            handled = stats.accepted - stats.queue_size - stats.in_hand
            if apps and stats.accepted > handled:
                if len(waiting) >= _MOST_SETTLING:  # it is far behind
                    apps |= waiting.pop().apps
                waiting.append(_Settling(stats.accepted, apps))
                apps = set()
            while waiting and waiting[0].accepted <= handled:
                apps |= waiting.popleft().apps
        return apps
