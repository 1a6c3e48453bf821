"""GET, PUT and DELETE /scheduler-conf: the queues in use, and changes of them.

A key has YARN's name or the configuration's. Under YARN's name, its value has YARN's unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from statemachines.resourcemanager.records.acls import Caller
from statemachines.resourcemanager.records.config import QueueConfig, SchedulerConfig
from statemachines.resourcemanager.records.queue_keys import KEYS, LABELS, ROOT_KEYS, SHARES
from statemachines.resourcemanager.web.rest.rest_endpoints import answer, route
from statemachines.resourcemanager.web.rest.writing.bodies import Fields, bad
from statemachines.resourcemanager.web.rest.writing.common import changing, fields_of
from statemachines.resourcemanager.web.rest.writing.node_changes import changes_made
from statemachines.resourcemanager.web.shared import WriteDeadline

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

_ROOT: Final = "root"
_PREFIX: Final = "yarn.scheduler.capacity."
_OPERATION: Final = "updateSchedulerConfiguration"
_AGAIN: Final = "the change may still be made: look at /ws/v1/cluster/changes"
_OWN_NAMES: Final = {
    "maximum_lifetime_s": "maximum-application-lifetime",
    "default_lifetime_s": "default-application-lifetime",
    "default_node_label": "default-node-label-expression",
    "acl_submit_applications": "acl_submit_applications",
    "acl_administer_queue": "acl_administer_queue",
    "disable_preemption": "disable_preemption",
}
_YARN_NAMES: Final = {key: _OWN_NAMES.get(key, key.replace("_", "-")) for key in KEYS}
_KEYS: Final = {name: key for key, name in _YARN_NAMES.items()}
_MASTERS: Final = "maximum-am-resource-percent"
_YARN_LABELS: Final = LABELS.replace("_", "-")


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    async def configuration(_: Request) -> Response:
        properties = [{"name": name, "value": value} for name, value in _properties(rm.admin.scheduler_config)]
        return answer({"property": properties})

    async def update(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        rm.clients.acls.check_administrator(caller, _OPERATION)
        body = await fields_of(request)
        set_ = _settings(body, "update-queue")
        for index, values in enumerate(body.objects("global-updates")):
            set_.setdefault(_ROOT, {}).update(_values(values, "", f"global-updates[{index}]"))
        added, removed = _settings(body, "add-queue"), body.texts("remove-queue", "")
        changed = rm.admin.update_queues_later(set_, add=added, remove=removed, caller=caller)
        return await changes_made(rm, changed, deadline, _AGAIN)

    async def give_up(request: Request, caller: Caller, deadline: WriteDeadline) -> Response:
        names = request.query_params.getlist("queue")
        given_up = rm.admin.give_up_queue_changes_later(names or None, caller=caller)
        return await changes_made(rm, given_up, deadline, _AGAIN)

    return [
        route(rm, "/scheduler-conf", configuration),
        changing(rm, "/scheduler-conf", ["PUT"], _OPERATION, update),
        changing(rm, "/scheduler-conf", ["DELETE"], _OPERATION, give_up),
    ]


# -- a request ---------------------------------------------------------------------------------------------------------


def _settings(body: Fields, key: str) -> dict[str, dict[str, object]]:
    """`[{"queue-name": ..., "params": {"entry": [{"key": ..., "value": ...}]}}]`; one object may stand for the list."""
    found: dict[str, dict[str, object]] = {}
    for queue in body.objects(key):
        name = queue.text("queue-name")
        if name in found:
            bad(queue.where("queue-name"), f"{name[:200]!r} is there twice")
        found[name] = _values(queue, "params", queue.where("params"))
    return found


def _values(fields: Fields, key: str, where: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value, at in fields.entries(key) if key else fields.own_entries():
        own = _own_key(name.removeprefix(_PREFIX))
        if own in found:
            bad(where, f"the key {own[:100]} is there twice")
        if not (value is None or isinstance(value, str | int | float)):
            bad(at, "expected a text, a number, a boolean or null")
        found[own] = _own_value(name.removeprefix(_PREFIX), value, at)
    return found


def _own_key(name: str) -> str:
    first, _, rest = name.partition(".")
    if first in (_YARN_LABELS, LABELS) and rest:
        label, _, share = rest.rpartition(".")
        return f"{LABELS}.{label}.{_KEYS.get(share, share)}"
    return _KEYS.get(name, name)


def _own_value(name: str, value: str | int | float | None, where: str) -> object:
    """In YARN, the share of masters is a fraction."""
    if name != _MASTERS or value is None or isinstance(value, bool):
        return value
    try:
        return round(100 * float(value), 9)
    except (ValueError, OverflowError):
        bad(where, f"is {str(value)[:40]!r}; expected a share from 0 to 1")


# -- the answer --------------------------------------------------------------------------------------------------------


def _properties(config: SchedulerConfig) -> Iterator[tuple[str, str]]:
    yield f"{_PREFIX}{_ROOT}.queues", ",".join(queue.name for queue in config.queues)
    for key in ROOT_KEYS:
        value = getattr(config, key)
        if value is not None:
            above = f"{_ROOT}." if key.startswith("acl_") else ""
            yield f"{_PREFIX}{above}{_YARN_NAMES[key]}", _text(key, value)
    if config.kind == "capacity":
        for queue in config.queues:
            yield from _properties_of(queue, _ROOT)


def _properties_of(queue: QueueConfig, above: str) -> Iterator[tuple[str, str]]:
    path = f"{above}.{queue.name}"
    if queue.queues:
        yield f"{_PREFIX}{path}.queues", ",".join(child.name for child in queue.queues)
    for key, name in _YARN_NAMES.items():
        value = getattr(queue, key)
        if value is not None:
            yield f"{_PREFIX}{path}.{name}", _text(key, value)
    if queue.accessible_node_labels:
        yield f"{_PREFIX}{path}.{_YARN_LABELS}", ",".join(queue.accessible_node_labels)
    for label, share in queue.accessible_node_labels.items():
        for key in SHARES:
            yield f"{_PREFIX}{path}.{_YARN_LABELS}.{label}.{_YARN_NAMES[key]}", _text(key, getattr(share, key))
    for child in queue.queues:
        yield from _properties_of(child, path)


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if _YARN_NAMES[key] == _MASTERS:
        value = round(value / 100, 9)
    return f"{value:.15g}" if isinstance(value, float) else str(value)
