"""What administrators have changed of the configured queues, and the configuration that follows from both.

Each change gives one key of one queue a value. It overrides the configuration until the next change of that key, or
until it is given up. A change that does not fit the configuration of a later start is set aside: it is kept and shown
with the reason, and is tried again at the next start.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from dispatcher.config import ConfigModel
from dispatcher.errors import ConfigError
from dispatcher.util.figures import counted
from statemachines.resourcemanager.records.config import PartitionCapacityConfig, QueueConfig, SchedulerConfig
from statemachines.resourcemanager.records.errors import InvalidRequestError
from statemachines.resourcemanager.records.queue_keys import KEYS, LABELS, ROOT_KEYS, SHARES, label_and_share
from statemachines.resourcemanager.records.stored_state import Origin, QueueChange, QueueValue
from statemachines.resourcemanager.reports.admin_changes import QueueChangeReport
from statemachines.resourcemanager.scheduler.capacity.queue_checks import ROOT, check_scheduler_queues

log: logging.Logger = logging.getLogger(__name__)

QUEUE: Final = "queue"
"""The key of a change that adds or removes a queue."""
ADDED: Final = "added"
REMOVED: Final = "removed"
_PLACE: Final = re.compile(r"scheduler\.queues((?:\[\d{1,9}\](?:\.queues)?)*)\.?")
_LONGEST_NAME: Final = 255
_BOOLEANS: Final = {"true": True, "false": False}
_FIFO: Final = "the FIFO scheduler has one queue, and nothing of it can be changed (scheduler.kind)"

Settings = Mapping[str, Mapping[str, object]]
"""Values by queue and key. None gives up the change of the key."""
_Key = tuple[str, str]
_Changes = dict[_Key, QueueChange]
_Tree = dict[str, Any]


class QueueUpdate(NamedTuple):
    """A request that fits the configured queues. The scheduler may still reject it, because of its applications."""

    config: SchedulerConfig
    in_effect: _Changes
    set_aside: _Changes


class QueueChanges:
    """All changes of queues, including those that are set aside."""

    def __init__(self, configured: SchedulerConfig) -> None:
        self._configured = configured
        self._configured_queues = dict(_walk(_tree_of(configured)))  # by path; never changed
        self._changes: _Changes = {}
        self._problems: dict[_Key, str] = {}  # why each change that is set aside does not fit

    def to_store(self) -> tuple[QueueChange, ...]:
        return tuple(self._changes.values())

    def reports(self) -> tuple[QueueChangeReport, ...]:
        return tuple(
            QueueChangeReport(
                change.queue,
                change.key,
                change.value,
                _value_in(self._configured_queues.get(change.queue), change),
                change.origin,
                self._problems.get(key, ""),
            )
            for key, change in sorted(self._changes.items())
        )

    # -- a request -----------------------------------------------------------------------------------------------------

    def update(self, set: Settings, add: Settings, remove: Iterable[str], origin: Origin) -> QueueUpdate:
        """Check a request that sets, adds and removes these queues, in this order.

        Raises:
            InvalidRequestError: the request names an unknown queue or key, or the result is no valid tree of queues.
        """
        if self._configured.kind != "capacity":
            raise InvalidRequestError(_FIFO)
        changes, removed = self._in_effect(), tuple(remove)
        if not (set or add or removed):
            raise InvalidRequestError("the request changes nothing: it names no queue")
        tree = _with(self._configured, changes.values())  # once for all: setting keys adds and removes no queue
        for name, values in set.items():
            path = _path_of(name, tree)
            for key, value in values.items():
                _set(changes, path, key, value, origin)
        for name, values in add.items():
            path = self._add(changes, name, origin)
            for key, value in values.items():
                _set(changes, path, key, value, origin)
        for name in removed:
            tree = _with(self._configured, changes.values())
            self._remove(changes, _path_of(name, tree), tree, origin)
        return self._checked(changes, self._changes)

    def give_up(self, queues: Iterable[str] | None) -> QueueUpdate:
        """Check a request that gives up all changes of these queues; None: all changes, including those set aside.

        Raises:
            InvalidRequestError: a queue has no changes, or the result is no valid tree of queues.
        """
        if queues is None:
            return QueueUpdate(self._configured, {}, {})
        changes = dict(self._changes)
        for name in queues:
            path = next((path for path in (name, f"{ROOT}.{name}") if any(queue == path for queue, _ in changes)), None)
            if path is None:
                raise InvalidRequestError(f"queue {name} has no changes to give up")
            was_added = _is(changes.get((path, QUEUE)), ADDED)
            for key in [each for each in changes if each[0] == path or (was_added and each[0].startswith(f"{path}."))]:
                del changes[key]
        return self._checked({key: each for key, each in changes.items() if key not in self._problems}, changes)

    def take(self, update: QueueUpdate) -> None:
        """Keep the changes of an update that the scheduler has taken."""
        self._changes = update.set_aside | update.in_effect
        self._problems = {key: self._problems[key] for key in update.set_aside}

    def _checked(self, in_effect: _Changes, kept: _Changes) -> QueueUpdate:
        """`kept` includes the changes that stay set aside."""
        try:
            config = _changed(self._configured, in_effect.values())
        except ConfigError as error:
            raise InvalidRequestError(str(error)) from error
        aside = {key: each for key, each in kept.items() if key in self._problems and key not in in_effect}
        return QueueUpdate(config, in_effect, aside)

    def _in_effect(self) -> _Changes:
        return {key: change for key, change in self._changes.items() if key not in self._problems}

    def _add(self, changes: _Changes, name: str, origin: Origin) -> str:
        path = name if name.startswith(f"{ROOT}.") else f"{ROOT}.{name}"
        tree = _with(self._configured, changes.values())
        above, _, last = path.rpartition(".")
        try:
            QueueConfig(name=last)
        except ConfigError:
            raise InvalidRequestError(f"queue {name[:_LONGEST_NAME]!r}: not the name of a queue") from None
        if len(path) > _LONGEST_NAME:
            raise InvalidRequestError(f"queue {path[:_LONGEST_NAME]}...: more than {_LONGEST_NAME} characters")
        if _find(tree, path) is not None:
            raise InvalidRequestError(f"queue {path} exists already")
        if _find(tree, above) is None:
            raise InvalidRequestError(f"queue {path} cannot be added: queue {above} does not exist")
        if _is(changes.pop((path, QUEUE), None), REMOVED):
            return path  # it is the configured one again
        changes[path, QUEUE] = QueueChange(path, QUEUE, ADDED, origin)
        return path

    def _remove(self, changes: _Changes, path: str, tree: _Tree, origin: Origin) -> None:
        if path == ROOT:
            raise InvalidRequestError("queue root cannot be removed")
        names = path.split(".")
        line = [_find(tree, ".".join(names[:count])) for count in range(2, len(names) + 1)]
        if not any(node is not None and node["state"] == "STOPPED" for node in line):
            raise InvalidRequestError(f"queue {path} cannot be removed while it runs: stop it first (state STOPPED)")
        for key in [each for each in changes if each[0] == path or each[0].startswith(f"{path}.")]:
            del changes[key]
        if path in self._configured_queues:
            changes[path, QUEUE] = QueueChange(path, QUEUE, REMOVED, origin)

    # -- the start -----------------------------------------------------------------------------------------------------

    def restore(self, stored: Iterable[QueueChange]) -> SchedulerConfig:
        """Take the stored changes, and return the configuration with those that fit it. The others are logged.

        The shares of one parent's children must add up, so their changes take effect together or not at all.
        """
        self._changes = {(change.queue, change.key): change for change in stored}
        if self._configured.kind != "capacity":
            self._set_aside(dict.fromkeys(self._changes, _FIFO))
            return self._configured
        try:
            return _changed(self._configured, self._changes.values())
        except (ConfigError, InvalidRequestError):
            pass
        groups: dict[tuple[str, str], list[QueueChange]] = {}
        for change in sorted(self._changes.values(), key=lambda each: (each.queue.count("."), each.queue)):
            groups.setdefault(_group_of(change), []).append(change)
        fitting: list[QueueChange] = []
        problems: dict[_Key, str] = {}
        config, waiting, found = self._configured, list(groups.values()), True
        while found and waiting:  # one may need another, such as a queue that was added
            found, problems = False, {}
            batches, waiting = [waiting], []
            while batches:
                batch = batches.pop()
                try:
                    config = _changed(self._configured, chain(fitting, *batch))
                except (ConfigError, InvalidRequestError) as error:
                    if len(batch) == 1:
                        waiting += batch
                        problems.update(dict.fromkeys([(each.queue, each.key) for each in batch[0]], str(error)))
                    else:  # by halves: each check is of the whole tree, and few groups are wrong
                        middle = len(batch) // 2
                        batches += batch[middle:], batch[:middle]
                else:
                    found = True
                    fitting += chain(*batch)
        self._set_aside(problems)
        return config

    def _set_aside(self, problems: dict[_Key, str]) -> None:
        self._problems = problems
        log.error(
            "%s of queues set aside, since they do not fit the configuration; they are kept, and have no effect "
            "until they fit at a start or are given up: %s",
            counted(len(problems), "change"),
            "; ".join(f"{queue}, {key}: {why}" for (queue, key), why in sorted(problems.items())),
        )


def _group_of(change: QueueChange) -> tuple[str, str]:
    if change.key == QUEUE or change.key.split(".")[-1] in SHARES:
        return change.queue.rpartition(".")[0], "shares"
    return change.queue, "lifetime" if change.key.endswith("_lifetime_s") else change.key


def _path_of(name: str, tree: _Tree) -> str:
    """The path of a queue by its path, which may leave out the root, or of one without children by its name."""
    for path in (name, f"{ROOT}.{name}"):
        if _find(tree, path) is not None:
            return path
    leaves = [path for path, node in _walk(tree) if node["name"] == name and not node["queues"]]
    if len(leaves) == 1:
        return leaves[0]
    raise InvalidRequestError(f"queue {name[:_LONGEST_NAME]} does not exist")


def _is(change: QueueChange | None, value: str) -> bool:
    return change is not None and change.value == value


def _set(changes: _Changes, path: str, key: str, value: object, origin: Origin) -> None:
    is_root = path == ROOT
    if is_root and key not in ROOT_KEYS:
        raise InvalidRequestError(f"queue {path}, {key[:100]}: cannot be changed; expected {', '.join(ROOT_KEYS)}")
    if not is_root and key not in KEYS and label_and_share(key) is None:
        expected = f"{', '.join(KEYS)}, {LABELS}.LABEL.capacity or {LABELS}.LABEL.maximum_capacity"
        raise InvalidRequestError(f"queue {path}, {key[:100]}: cannot be changed; expected one of {expected}")
    if value is None:
        changes.pop((path, key), None)
    else:
        changes[path, key] = QueueChange(path, key, _valid(path, key, value), origin)


def _valid(path: str, key: str, value: object) -> QueueValue:
    """The value in the type that the configuration has for the key, such as 50.0 for `50`.

    Raises:
        InvalidRequestError: the configuration does not allow it.
    """
    labelled = label_and_share(key)
    name = key if labelled is None else labelled[1]
    model: type[ConfigModel] = QueueConfig if labelled is None else PartitionCapacityConfig
    others: dict[str, object] = {"name": "any"} if labelled is None else {"capacity": 0}
    if path == ROOT:
        model, others = SchedulerConfig, {}
    try:
        found = getattr(model.model_validate({**others, name: value}), name)
    except ConfigError as error:
        number = _number(value) if isinstance(value, str) else None
        if number is not None:
            return _valid(path, key, number)
        problem = str(error).removeprefix(f"{model.__name__}: {name}: ")
        raise InvalidRequestError(f"queue {path}, {key}: {problem}") from error
    return found  # type: ignore[no-any-return]


def _number(text: str) -> int | float | bool | None:
    """The number or boolean in a text: Hadoop's clients send all values as texts. None: it has neither."""
    for convert in (int, float, _BOOLEANS.__getitem__):
        try:
            return convert(text.strip())
        except (ValueError, LookupError):
            continue
    return None


# -- the configuration with changes ------------------------------------------------------------------------------------


def _changed(configured: SchedulerConfig, changes: Iterable[QueueChange]) -> SchedulerConfig:
    """
    Raises:
        InvalidRequestError, ConfigError: the changes do not fit; names the queue.
    """
    tree = _with(configured, changes)
    keys = {key: tree[key] for key in ROOT_KEYS} | {"queues": tree["queues"]}
    try:
        config = SchedulerConfig.model_validate(configured.model_dump() | keys)
        check_scheduler_queues(config)
    except ConfigError as error:
        raise ConfigError(_by_path(str(error), tree["queues"])) from error
    return config


def _by_path(message: str, queues: Sequence[_Tree]) -> str:
    """Name the queues in an error of the configuration by their paths instead of their places in the file."""

    def path_of(match: re.Match[str]) -> str:
        below, path = queues, ROOT
        for index in re.findall(r"\d+", match[1]):
            if int(index) >= len(below):
                return match[0]  # not a place, but a value that looks like one
            path, below = f"{path}.{below[int(index)]['name']}", below[int(index)]["queues"]
        if match[1].endswith("]"):
            return f"queue {path}{', ' if match[0].endswith('.') else ''}"
        return f"the queues below {path}"

    return _PLACE.sub(path_of, message)


def _with(configured: SchedulerConfig, changes: Iterable[QueueChange]) -> _Tree:
    """The tree of queues with these changes, unchecked. Raises InvalidRequestError: a queue does not exist."""
    tree = _tree_of(configured)
    listed = sorted(changes, key=lambda each: each.queue.count("."))
    for change in listed:
        if change.key == QUEUE and change.value == ADDED and _find(tree, change.queue) is None:
            above, _, name = change.queue.rpartition(".")
            parent = _find(tree, above)
            if parent is None:
                raise InvalidRequestError(f"queue {change.queue} cannot be added: there is no queue {above}")
            parent["queues"].append(QueueConfig(name=name).model_dump() | {"queues": []})
    for change in listed:
        if change.key != QUEUE:
            node = _find(tree, change.queue)
            if node is None:
                raise InvalidRequestError(f"there is no queue {change.queue}")
            labelled = label_and_share(change.key)
            if labelled is None:
                node[change.key] = change.value
            else:
                label, share = labelled
                node[LABELS].setdefault(label, PartitionCapacityConfig(capacity=0).model_dump())[share] = change.value
    for change in listed:
        if change.key == QUEUE and change.value == REMOVED:
            above, _, name = change.queue.rpartition(".")
            parent = _find(tree, above)
            if parent is not None:
                parent["queues"] = [each for each in parent["queues"] if each["name"] != name]
    return tree


def _tree_of(config: SchedulerConfig) -> _Tree:
    """The root with all queues below it, as new dicts and lists that the caller may change."""
    return {
        "name": ROOT,
        "state": "RUNNING",
        **{key: getattr(config, key) for key in ROOT_KEYS},
        "queues": [_plain(queue) for queue in config.queues],
    }


def _plain(queue: QueueConfig) -> _Tree:
    return queue.model_dump() | {"queues": [_plain(child) for child in queue.queues]}


def _find(tree: _Tree, path: str) -> _Tree | None:
    first, *names = path.split(".")
    node: _Tree | None = tree if first == ROOT else None
    for name in names:
        node = next((each for each in node["queues"] if each["name"] == name), None) if node is not None else None
    return node


def _walk(tree: _Tree, above: str = "") -> Iterator[tuple[str, _Tree]]:
    path = f"{above}.{tree['name']}" if above else tree["name"]
    yield path, tree
    for child in tree["queues"]:
        yield from _walk(child, path)


def _value_in(node: _Tree | None, change: QueueChange) -> QueueValue:
    if node is None or change.key == QUEUE:
        return None
    labelled = label_and_share(change.key)
    found = node.get(change.key) if labelled is None else node[LABELS].get(labelled[0], {}).get(labelled[1])
    return found if isinstance(found, (bool, int, float, str)) else None
