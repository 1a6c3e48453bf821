"""A Yarn as a stage for scenarios. Applications, masters and containers have the names that the script gives them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest

from dispatcher import DispatcherError
from statemachines.resourcemanager import (
    ContainerRequest,
    FinalApplicationStatus,
    NMContainerStatus,
    Resource,
    RMContainer,
    RMNodeEventType,
)

from ....kit.scenarios import play
from ..inner import AllocateResponse, HeartbeatResponse, RMNodeEvent, node_id
from .yarn_cluster import Master, Yarn, ask, first_attempt, hosts_of

Scene = tuple[dict[str, Any], str]
"""The cluster, with its nodes and settings, and the script."""


def play_scene(scene: Scene) -> None:
    options, script = scene
    settings = {name: value for name, value in options.items() if name != "nodes"}
    with Yarn(*options.get("nodes", ("n1",)), **settings) as yarn:
        play(Stage(yarn), script)


class Stage:
    """`a.field`: of the report on an application, or, of a master's other name, on its attempt. `@t`: a host."""

    def __init__(self, yarn: Yarn) -> None:
        self.yarn = yarn
        self._apps: dict[str, str] = {}
        self._masters: dict[str, Master] = {}
        self._containers: dict[str, RMContainer] = {}
        self._tags, self._asked = count(1), dict[int, str]()
        self._got: list[str] = []
        self._refusal = ""
        self._response: AllocateResponse | None = None
        self._answer = HeartbeatResponse()

    # -- what happens --------------------------------------------------------------------------------------------------

    def play(self, verb: str, *words: str) -> None:
        if verb[0] == "+":
            self.yarn.advance(int(verb))
        elif verb == "refused":
            with pytest.raises(DispatcherError) as refusal:
                self.play(*words)
            self._refusal = type(refusal.value).__name__
        else:
            getattr(self, f"_{verb}")(*words)

    def _submit(self, name: str, *fields: str) -> None:
        self._apps[name] = self.yarn.submit(name, **dict(_field(each) for each in fields))

    def _run(self, app: str, name: str = "") -> None:
        """The master that was started last registers; `name`: if it is not the application's first one."""
        self._enter(name or app, self.yarn.run(self._apps[app]))

    def _start(self, name: str, *fields: str) -> None:
        self._submit(name, *fields)
        self._run(name)

    def _unmanaged(self, name: str) -> None:
        """A master that the cluster does not run registers."""
        self._enter(name, Master(self.yarn, first_attempt(self._apps[name]), None))
        self._masters[name].register()

    def _enter(self, name: str, master: Master) -> None:
        self._masters[name] = master
        if master.container is not None:
            self._containers[name] = master.container

    def _enrol(self, name: str) -> None:
        self._masters[name].register()

    def _ask(self, name: str, *words: str) -> None:
        """For a container of each name. Words for all of them: `@host`, `/rack`, `!` behind it: nowhere else; `:label`;
        `5mb`."""
        options: dict[str, Any] = {}
        names = []
        for word in words:
            key = {"@": "host", "/": "rack", ":": "node_label"}.get(word[0])
            if key is not None:
                place = word.rstrip("!")
                options |= {key: place if key == "rack" else place[1:], "relax_locality": place == word}
            elif word.endswith("mb"):
                options["memory_mb"] = int(word.removesuffix("mb"))
            else:
                names.append(word)
        asks = []
        for each in names:
            tag = next(self._tags)
            self._asked[tag] = each
            asks.append(ask(tag=tag, **options))
        self._allocate(name, *asks)

    def _get(self, name: str, *words: str) -> None:
        """As `ask`; nodes start what comes at once."""
        self._ask(name, *words)
        self._launch(*self._got)

    def _call(self, name: str) -> None:
        self._allocate(name)

    def _allocate(self, name: str, *asks: ContainerRequest, **more: Any) -> None:
        self._response = self._masters[name].allocate(*asks, **more)
        self._got = [self._asked[each.request.tag] for each in self._response.allocated]
        self._containers.update(zip(self._got, self._response.allocated, strict=True))

    def _release(self, name: str, *containers: str) -> None:
        self._allocate(name, releases=[self._containers[each].entity for each in containers])

    def _resize(self, name: str, container: str, mb: str) -> None:
        self._allocate(name, resizes=[(self._containers[container].entity, Resource(int(mb), 1))])

    def _avoid(self, name: str, host: str) -> None:
        self._allocate(name, blacklist_additions=[host])

    def _forgive(self, name: str, host: str) -> None:
        self._allocate(name, blacklist_removals=[host])

    def _launch(self, *names: str) -> None:
        self.yarn.launch(*[self._containers[name] for name in names])

    def _end(self, name: str, status: str = "0", said: str = "") -> None:
        self.yarn.end(self._containers[name], int(status), said.replace("_", " "))

    def _crash(self, name: str, said: str = "") -> None:
        self._end(name, "1", said)

    def _finish(self, name: str, status: str = "SUCCEEDED") -> None:
        self._is_done = self._masters[name].finish(final_status=FinalApplicationStatus[status])

    def _exit(self, name: str) -> None:
        self._masters[name].finish_and_exit()

    def _of_clients(self, call: str, app: str, *words: Any) -> None:
        self.yarn.do(lambda: getattr(self.yarn.clients, call)(self._apps[app], *words))

    def _kill(self, app: str) -> None:
        self.yarn.kill(self._apps[app])

    def _fail(self, app: str) -> None:
        self.yarn.do(lambda: self.yarn.clients.fail_application_attempt(first_attempt(self._apps[app])))

    def _lifetime(self, app: str, seconds: str) -> None:
        self._of_clients("update_application_timeouts", app, int(seconds))

    def _priority(self, app: str, priority: str) -> None:
        self._of_clients("update_application_priority", app, int(priority))

    def _move(self, app: str, queue: str) -> None:
        self._of_clients("move_application_across_queues", app, queue)

    def _signal(self, container: str, signal: str) -> None:
        id = self._containers[container].entity
        self.yarn.do(lambda: self.yarn.clients.signal_to_container(id, signal))

    def _says(self, app: str, words: str) -> None:
        assert words.replace("_", " ") in self.yarn.report(self._apps[app]).diagnostics

    def _finds(self, container: str, status: str) -> None:
        """The response to the master's last call has its end."""
        assert self._response is not None
        found = {self._name(each.container): each.exit_status for each in self._response.finished}
        assert found.get(container) == int(status), found

    def _stops(self, container: str) -> None:
        """Its node manager was told to stop it."""
        assert container in self._names(self.yarn.stopped)

    def _cleans(self, container: str) -> None:
        """The answer to the last heartbeat told the node to clean it up."""
        assert container in self._names(self._answer.containers_to_clean)

    def _beat(self, host: str, *words: str) -> None:
        """`id=`, `running=` and `ill`."""
        options = dict(word.partition("=")[::2] for word in words)
        more: dict[str, Any] = {"healthy": "ill" not in options}
        if "id" in options:
            more["response_id"] = int(options["id"])
        if "running" in options:
            more["running"] = frozenset(self._containers[each].entity for each in options["running"].split(","))
        self._answer = self.yarn.heartbeat(host, **more)

    def _resized(self, container: str, mb: str) -> None:
        """Its node says that it has this size now."""
        found = self._containers[container]
        self.yarn.heartbeat(hosts_of([found])[0], resized=((found.entity, Resource(int(mb), 1)),))

    def _register(self, host: str, *containers: str) -> None:
        """With these containers."""
        found = [self._containers[each] for each in containers]
        reports = [NMContainerStatus(each.entity, each.request.resource) for each in found]
        self.yarn.register(host, containers=reports, running_apps=sorted({each.application for each in found}))

    def _unregister(self, host: str) -> None:
        self.yarn.do(lambda: self.yarn.manager.tracker.unregister_node(node_id(host)))

    def _expire(self, host: str) -> None:
        self.yarn.do(lambda: self.yarn.context.post(RMNodeEvent(RMNodeEventType.EXPIRE, node_id(host))))

    def _empty(self, host: str, seconds: str = "") -> None:
        timeout_s = int(seconds) if seconds else None
        self.yarn.do(lambda: self.yarn.admin.refresh_nodes([host], graceful=True, timeout_s=timeout_s))

    def _decommission(self, host: str) -> None:
        self.yarn.do(lambda: self.yarn.admin.refresh_nodes([host]))

    def _recommission(self, host: str) -> None:
        self.yarn.do(lambda: self.yarn.admin.recommission([host]))

    def _include(self, *hosts: str) -> None:
        self.yarn.do(lambda: self.yarn.admin.refresh_nodes(include=hosts))

    def _capacity(self, host: str, amount: str) -> None:
        size = Resource(int(amount), int(amount))
        self.yarn.do(lambda: self.yarn.admin.update_node_resource(node_id(host), size))

    def _label(self, host: str, label: str = "") -> None:
        self.yarn.do(lambda: self.yarn.admin.replace_labels_on_node(node_id(host), label))

    # -- what is seen --------------------------------------------------------------------------------------------------

    def look(self, what: str) -> Iterable[object]:
        yarn, response, answer = self.yarn, self._response, self._answer
        if what in self._apps:
            state, attempts = yarn.states(self._apps[what])
            return [state, *attempts]
        if what[0] == "@":
            return hosts_of([self._containers[what[1:]]])
        name, _, field = what.partition(".")
        if field:
            return _items(getattr(self._report(name), field))
        if what in ("finished", "ended", "updated"):
            assert response is not None
            return self._news(what, response)
        looks = {
            "ill": lambda: [node.host for node in yarn.clients.get_cluster_nodes() if not node.is_healthy],
            "nodes": lambda: [f"{host}={state}" for host, state in sorted(yarn.node_states().items())],
            "started": lambda: hosts_of(yarn.started),
            "live": lambda: self._names(yarn.context.containers),
            "got": lambda: sorted(self._got),
            "kept": lambda: self._names(list(self._masters.values())[-1].kept),
            "done": lambda: [self._is_done],
            "refusal": lambda: [self._refusal],
            "total": lambda: [yarn.clients.get_cluster_metrics().total.memory_mb],
            "action": lambda: [answer.action.name],
            "id": lambda: [answer.response_id],
            "to_clean": lambda: self._names(answer.containers_to_clean),
            "apps_to_clean": lambda: [name for name, id in self._apps.items() if id in answer.apps_to_clean],
            "to_signal": lambda: [f"{self._name(id)}={signal}" for id, signal in answer.containers_to_signal],
            "resized": lambda: (
                [f"{self._name(id)}={size.memory_mb}" for id, size in response.resized] if response else []
            ),
        }
        return looks[what]()

    def _news(self, what: str, response: AllocateResponse) -> list[str]:
        """Of the master's last call: changes of nodes; or ended containers, with or without their exit status."""
        if what == "updated":
            return [f"{_host(id)}={type.name}" for id, type in response.updated_nodes]
        ended = {self._name(each.container): each.exit_status for each in response.finished}
        return sorted(f"{name}={status}" if what == "finished" else name for name, status in ended.items())

    def _report(self, name: str) -> Any:
        clients = self.yarn.clients
        if name in self._apps:
            return self.yarn.report(self._apps[name])
        if name in self._masters:
            return clients.get_application_attempt_report(self._masters[name].attempt)
        if name in self._containers:
            return clients.get_container_report(self._containers[name].entity)
        return clients.get_queue_info(name.replace("/", "."))

    def _name(self, container: str) -> str:
        """`?`: the script has not named it."""
        return next((name for name, each in self._containers.items() if each.entity == container), "?")

    def _names(self, containers: Iterable[str]) -> list[str]:
        return sorted(map(self._name, containers))


def _host(id: str) -> str:
    return id.partition(":")[0]


def _items(value: object) -> Iterable[object]:
    if isinstance(value, Resource):
        return [value.memory_mb]
    if isinstance(value, float):
        return [round(value, 6)]
    return value if isinstance(value, tuple | list) else [] if value == "" else [value]


def _field(word: str) -> tuple[str, Any]:
    name, _, value = word.partition("=")
    return name, int(value) if value.isdigit() else {"true": True}.get(value, value)
