"""Who may do what: access control lists in YARN's syntax, for applications and queues.

An application may be changed by its owner, by the users of its list MODIFY_APP, and by the administrators of its queue
and of the cluster; VIEW_APP is the list of those that may also see it. Lists of queues grant for their children, too.

Any thread may read all of this. Only the lists of queues change, as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, Protocol

from statemachines.resourcemanager.records.config import QueueConfig, ResourceManagerConfig, SchedulerConfig
from statemachines.resourcemanager.records.errors import AccessDeniedError
from statemachines.resourcemanager.records.submission import LaunchContext

_ROOT = "root"
_FIFO_QUEUE = "root.default"


@dataclass(frozen=True, slots=True)
class Caller:
    """The user on whose behalf you call a service."""

    user: str
    groups: frozenset[str] = frozenset()
    is_admin: bool = False
    """Whether its role makes it an administrator of the cluster, whatever the lists say."""


class QueueACL(Enum):
    """What a list of a queue is for."""

    SUBMIT_APPLICATIONS = "acl_submit_applications"
    ADMINISTER_QUEUE = "acl_administer_queue"


class ApplicationAccess(Enum):
    """What a list of an application is for; the names are the keys of `LaunchContext.acls`."""

    VIEW_APP = "VIEW_APP"
    MODIFY_APP = "MODIFY_APP"


@dataclass(frozen=True, slots=True)
class AccessControlList:
    """Users and groups, after Hadoop's class of that name."""

    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    is_for_all: bool = False

    @classmethod
    def parse(cls, text: str) -> AccessControlList:
        """From `user1,user2 group1,group2`; `*` is everyone, one blank is nobody. Every text is valid.

        >>> AccessControlList.parse("ann,bob etl").allows(Caller("carl", frozenset({"etl"})))
        True
        >>> AccessControlList.parse(" etl").allows(Caller("etl"))
        False
        """
        return _parse(text)

    def allows(self, caller: Caller) -> bool:
        return self.is_for_all or caller.user in self.users or not self.groups.isdisjoint(caller.groups)

    def __str__(self) -> str:
        return "*" if self.is_for_all else f"{','.join(sorted(self.users))} {','.join(sorted(self.groups))}"


@lru_cache(maxsize=4096)
def _parse(text: str) -> AccessControlList:
    parts = text.split(" ", 1)
    if any(part.strip() == "*" for part in parts):
        return AccessControlList(is_for_all=True)
    users, groups = (frozenset(filter(None, (name.strip() for name in part.split(",")))) for part in (*parts, "")[:2])
    return AccessControlList(users, groups)


class OwnedApplication(Protocol):
    """What access depends on: an ApplicationReport, or an ApplicationSubmission."""

    @property
    def user(self) -> str: ...

    @property
    def queue(self) -> str: ...

    @property
    def launch(self) -> LaunchContext | None: ...


class QueueACLs:
    """The configured lists of queues and cluster, and what follows from them for a caller. Any thread.

    A queue has the lists of its own and those of all queues above. Where none of them is configured, everyone may
    submit; everyone may administer it unless callers prove who they are (`ResourceManagerConfig.knows_callers`), and
    then only administrators of the cluster. Without a caller, which is within this process, everything is allowed.
    """

    def __init__(self, config: ResourceManagerConfig) -> None:
        self._is_open = not config.knows_callers
        self._administrators = None if config.admin_acl is None else AccessControlList.parse(config.admin_acl)
        self._queues = _QueueLists.of(config.scheduler)  # replaced as a whole; each method takes it once

    def configure(self, scheduler: SchedulerConfig) -> None:
        """Take the lists of changed queues, on the handler thread."""
        self._queues = _QueueLists.of(scheduler)

    # -- queues -------------------------------------------------------------------------------------------------------

    def path_of(self, queue: str) -> str | None:
        """The path of a queue by its path, which may leave out the root, or of one without children by its name."""
        return self._queues.path_of(queue)

    def check(self, path: str, acl: QueueACL, caller: Caller | None) -> bool:
        """Whether the lists of a queue, by its path or name, or those of the cluster grant this to the caller.

        The root's lists count for a queue that does not exist.
        """
        if caller is None or self.is_administrator(caller):
            return True
        queues = self._queues
        lists = queues.lists_of(queues.path_of(path) or "").get(acl)
        if lists is None:
            return self._is_open or acl is QueueACL.SUBMIT_APPLICATIONS
        return any(each.allows(caller) for each in lists)

    def is_for_all(self, path: str, acl: QueueACL) -> bool:
        """Whether this is granted to everyone for want of a list, on the queue with this path and on all above."""
        is_listed = acl in self._queues.lists_of(path)
        return not is_listed and (self._is_open or acl is QueueACL.SUBMIT_APPLICATIONS)

    def may_submit(self, queue: str, caller: Caller | None) -> bool:
        """Whether the caller may submit to the queue, as one of its users or as an administrator."""
        return any(self.check(queue, acl, caller) for acl in QueueACL)

    def open_to_all(self) -> list[str]:
        """The paths of the queues for applications to which everyone may submit, in spite of a list that names users.

        Everyone administers these, for want of a list, and who administers a queue may submit to it.
        """
        if not self._is_open:
            return []
        queues = self._queues
        return [
            path
            for path in queues.leaves.values()
            if QueueACL.ADMINISTER_QUEUE not in (lists := queues.lists_of(path))
            and not any(each.is_for_all for each in lists.get(QueueACL.SUBMIT_APPLICATIONS, (_ALL,)))
        ]

    # -- the cluster --------------------------------------------------------------------------------------------------

    def is_administrator(self, caller: Caller) -> bool:
        """Whether the caller administers the cluster by its role or by the configured list."""
        return caller.is_admin or (self._administrators is not None and self._administrators.allows(caller))

    def check_administrator(self, caller: Caller | None, operation: str) -> None:
        """
        Raises:
            AccessDeniedError: the caller may not do what only administrators of the cluster may.
        """
        is_open = self._is_open and self._administrators is None
        if caller is not None and not is_open and not self.is_administrator(caller):
            raise AccessDeniedError(caller.user, f"User {caller.user} doesn't have permission to call '{operation}'")

    # -- applications -------------------------------------------------------------------------------------------------

    def may_view(self, app: OwnedApplication, caller: Caller | None) -> bool:
        """Whether the caller may see all of an application. Reports are enough to answer this, on any thread."""
        return self._may(app, ApplicationAccess.VIEW_APP, caller)

    def may_view_all(self, caller: Caller | None) -> bool:
        """Whether the caller may see all of every application: it administers every queue."""
        return all(self.check(path, QueueACL.ADMINISTER_QUEUE, caller) for path in self._queues.lists)

    def may_modify(self, app: OwnedApplication, caller: Caller | None) -> bool:
        """Whether the caller may kill, move or otherwise change an application."""
        return self._may(app, ApplicationAccess.MODIFY_APP, caller)

    def _may(self, app: OwnedApplication, access: ApplicationAccess, caller: Caller | None) -> bool:
        if caller is None or caller.user == app.user or self.check(app.queue, QueueACL.ADMINISTER_QUEUE, caller):
            return True
        listed = None if app.launch is None else app.launch.acls.get(access.value)
        return listed is not None and AccessControlList.parse(listed).allows(caller)


_Lists = Mapping[QueueACL, tuple[AccessControlList, ...]]
_ALL = AccessControlList(is_for_all=True)


class _QueueLists(NamedTuple):
    """The lists of all queues. They never change once made."""

    lists: Mapping[str, _Lists]
    """By path, with those of the queues above."""
    leaves: Mapping[str, str]
    """Path by name."""

    @classmethod
    def of(cls, scheduler: SchedulerConfig) -> _QueueLists:
        lists = _extended({}, scheduler.acl_submit_applications, scheduler.acl_administer_queue)
        if scheduler.kind == "fifo":
            return cls({_ROOT: lists, _FIFO_QUEUE: lists}, {"default": _FIFO_QUEUE})
        by_path, leaves = {_ROOT: lists}, {}
        for path, queue in _walk(scheduler.queues, _ROOT):
            inherited = by_path[path.rpartition(".")[0]]
            by_path[path] = _extended(inherited, queue.acl_submit_applications, queue.acl_administer_queue)
            if not queue.queues:
                leaves[queue.name] = path
        return cls(by_path, leaves)

    def path_of(self, queue: str) -> str | None:
        for path in (queue, self.leaves.get(queue, ""), f"{_ROOT}.{queue}"):
            if path in self.lists:
                return path
        return None

    def lists_of(self, path: str) -> _Lists:
        return self.lists.get(path) or self.lists[_ROOT]


def _walk(queues: Iterable[QueueConfig], above: str) -> Iterator[tuple[str, QueueConfig]]:
    """Each queue with its path, parents before children."""
    for queue in queues:
        path = f"{above}.{queue.name}"
        yield path, queue
        yield from _walk(queue.queues, path)


def _extended(inherited: _Lists, submit: str | None, administer: str | None) -> _Lists:
    lists = dict(inherited)
    for acl, text in (QueueACL.SUBMIT_APPLICATIONS, submit), (QueueACL.ADMINISTER_QUEUE, administer):
        if text is not None:
            lists[acl] = (*lists.get(acl, ()), AccessControlList.parse(text))
    return lists
