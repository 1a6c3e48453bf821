"""Scheduler decisions as scenarios: a cluster, asks and reports in words, and where the containers are.

    "node n1 n2 10 | app early late | ask early 10 | ask late 6@n2*2 -> early n1 ; late n2 ; waits late:6"

Nodes, attempts and queues are called by their names, and the containers of attempt `a` are `a1`, `a2` in the order in
which its master fetches them. A size is `MB`, `MBxVCORES` or `4x3g2:500f1`, with GPUs, the part of each and FPGAs; an
ask adds `@host` or `@/rack`, `!` in place of `@` if it insists, `#label`, `^priority`, `~models` and `*times`. All
invariants of the cluster are checked after each step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from statemachines.resourcemanager import Resource, RMContainer, RMNodeEventType

from ..cluster import Cluster
from ..inner import RMNodeEvent, SchedulerEvent, SchedulerEventType, WaitCause

SIZE = r"(?P<mb>\d+)(x(?P<vcores>\d+))?(g(?P<gpus>\d+)(:(?P<milli>\d+))?)?(f(?P<fpgas>\d+))?"
ASK = re.compile(SIZE + r"(?P<wishes>([@!#^~][^@!#^~*]*)*)(\*(?P<times>\d+))?")


def size_of(text: str) -> Resource:
    return _resource(re.fullmatch(SIZE, text))


def _resource(match: re.Match[str] | None) -> Resource:
    assert match is not None
    mb, gpus, fpgas = int(match["mb"]), int(match["gpus"] or 0), int(match["fpgas"] or 0)
    others = (("fpga", fpgas),) if fpgas else ()
    return Resource(mb, int(match["vcores"] or mb), gpus, int(match["milli"] or 1000), others)


def shown(size: Resource) -> str:
    """The size as scripts write it."""
    text = f"{size.memory_mb}" + (f"x{size.vcores_milli}" if size.vcores_milli != size.memory_mb else "")
    text += f"g{size.gpus}" + (f":{size.gpu_milli}" if size.gpu_milli != 1000 else "") if size.gpus else ""
    return text + "".join(f"f{amount}" for name, amount in size.others if name == "fpga")


class SchedulerStage:
    """Masters fetch and launch what they get after each step, until `hush`; nodes on heartbeats launch at `launch`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.attempts: dict[str, str] = {}
        self.containers: dict[str, RMContainer] = {}
        self.nodes: dict[str, str] = {}
        self.resized: list[str] = []
        self.is_hushed = False

    # -- what happens -------------------------------------------------------------------------------------------------

    def play(self, verb: str, *words: str) -> None:
        getattr(self, f"do_{verb}")(*words)
        if not self.is_hushed:
            self.fetch()
        self.cluster.check()

    def fetch(self) -> None:
        for name, attempt in self.attempts.items():
            for container in self.cluster.pull(attempt):
                self.containers[f"{name}{len(self.all_of(name)) + 1}"] = container
                if not self.cluster.on_heartbeat:
                    self.cluster.tracker.heartbeat(container.node, launched=(container.entity,))

    def all_of(self, name: str) -> list[RMContainer]:
        """What the master of that name has fetched."""
        return [container for key, container in self.containers.items() if key.rstrip("0123456789") == name]

    def app_of(self, name: str) -> str:
        return self.cluster.context.attempts[self.attempts[name]].app.entity

    def do_hush(self) -> None:
        self.is_hushed = True

    def do_fetch(self) -> None:
        self.is_hushed = False

    def do_node(self, *words: str) -> None:
        more = dict(word.split("=") for word in words if "=" in word)
        size = size_of(next((word for word in words if word[0].isdigit()), "10"))
        if "port" in more:
            more["port"] = int(more["port"])  # type: ignore[assignment]
        for host in words:
            if "=" not in host and not host[0].isdigit():
                amounts = size.memory_mb, size.vcores_milli, size.gpus
                self.nodes[host] = self.cluster.add_node(host, *amounts, others=dict(size.others), **more)

    def do_announce(self, host: str) -> None:
        """Again."""
        self.cluster.post(self.cluster.announcement(self.nodes[host]))

    def do_lose(self, *hosts: str) -> None:
        for host in hosts:
            self.cluster.lose_node(self.nodes[host])

    def do_decommission(self, *hosts: str) -> None:
        """At once."""
        for host in hosts:
            self.cluster.post(RMNodeEvent(RMNodeEventType.DECOMMISSION, self.nodes[host]))

    def do_beat(self, *hosts: str) -> None:
        for host in hosts:
            self.cluster.tracker.heartbeat(self.nodes[host])

    def do_update(self, host: str) -> None:
        """The scheduler gets a report of the node late: the node may no longer serve."""
        self.cluster.post(SchedulerEvent(SchedulerEventType.NODE_UPDATE, self.nodes[host]))

    def do_sicken(self, host: str) -> None:
        self.cluster.tracker.heartbeat(self.nodes[host], healthy=False)

    def do_drain(self, *hosts: str) -> None:
        for host in hosts:
            self.cluster.decommission(self.nodes[host])

    def do_undrain(self, *hosts: str) -> None:
        for host in hosts:
            self.cluster.recommission(self.nodes[host])
            self.cluster.tracker.heartbeat(self.nodes[host])

    def do_size(self, host: str, size: str) -> None:
        resource = size_of(size)
        amounts = resource.memory_mb, resource.vcores_milli, resource.gpus
        self.cluster.change_capacity(self.nodes[host], *amounts, **dict(resource.others))

    def do_label(self, host: str, label: str = "") -> None:
        self.cluster.change_label(self.nodes[host], label)

    def do_app(self, *words: str) -> None:
        """`app NAME NAME@QUEUE ... KEY=VALUE ...`: applications of user ann with one attempt each, in that queue."""
        more: dict[str, Any] = {"user": "ann"}
        for word in words:
            key, is_option, value = word.partition("=")
            if is_option:
                number: Any = int(value) if value.lstrip("-").isdigit() else value
                more[key] = size_of(value) if key == "am_resource" else number
        names = [word.partition("@")[::2] for word in words if "=" not in word]
        for name, queue in names:
            queue = queue or names[-1][1]
            self.attempts[name] = self.cluster.new_attempt(**({"queue": queue} if queue else {}), **more)

    def do_ask(self, name: str, *words: str) -> None:
        """Ask for these sizes in one call; a word that names a container releases it."""
        releases = tuple(self.containers[word].entity for word in words if word in self.containers)
        asks = []
        for match in (ASK.fullmatch(word) for word in words if word not in self.containers):
            assert match is not None, words
            wishes: dict[str, Any] = {}
            for kind, value in re.findall(r"([@!#^~])([^@!#^~]*)", match["wishes"]):
                if kind in "@!":
                    wishes |= {"rack" if value[0] == "/" else "host": value}
                    wishes |= {"relax_locality": False} if kind == "!" else {}
                elif kind == "~":
                    wishes["gpu_models"] = frozenset(value.split("+"))
                else:
                    wishes |= {"node_label": value} if kind == "#" else {"priority": int(value)}
            asks += [self.cluster.request(_resource(match), **wishes) for _ in range(int(match["times"] or 1))]
        self.cluster.ask(self.attempts[name], *asks, releases=releases)

    def do_launch(self, *names: str) -> None:
        for container in map(self.containers.__getitem__, names):
            self.cluster.tracker.heartbeat(container.node, launched=(container.entity,))

    def do_end(self, *names: str) -> None:
        for name in names:
            self.cluster.finish(self.containers[name])

    def do_expire(self, name: str) -> None:
        self.cluster.expire(self.containers[name])

    def do_resize(self, name: str, *sizes: str) -> None:
        for size in sizes:
            self.resized.append("yes" if self.cluster.resize(self.containers[name], size_of(size)) else "no")

    def do_stop(self, name: str, *keep: str) -> None:
        """The attempt ends; `keep`: its containers run on."""
        self.cluster.remove_attempt(self.attempts[name], keep_containers=bool(keep))

    def do_remove(self, name: str) -> None:
        """Its application goes."""
        self.cluster.remove_app(self.app_of(name))

    def do_next(self, name: str, of: str, *keep: str) -> None:
        """Another attempt of the application of `of`; `keep`: it takes over the containers."""
        app, number = self.app_of(of), int(self.attempts[of][-6:]) + 1
        attempt = self.attempts[name] = self.cluster.add_attempt(app, number, transfer_state=bool(keep))
        if keep:
            self.cluster.blacklists[attempt] = self.cluster.blacklists.get(self.attempts[of], set())

    def do_ban(self, name: str, host: str) -> None:
        self.cluster.blacklist(self.attempts[name], (host,))

    def do_unban(self, name: str, host: str) -> None:
        self.cluster.blacklist(self.attempts[name], removals=(host,))

    def do_urge(self, name: str, priority: str) -> None:
        app = self.app_of(name)
        self.cluster.in_handler(lambda: self.cluster.scheduler.update_priority(app, int(priority)))

    def do_move(self, name: str, queue: str) -> None:
        app = self.app_of(name)
        self.cluster.in_handler(lambda: self.cluster.scheduler.move_application(app, queue))

    # -- what is seen -------------------------------------------------------------------------------------------------

    def look(self, what: str) -> Iterable[object]:
        """Hosts of an attempt's containers, the state of a container, what is free on a node, what a queue uses."""
        kind, _, name = what.partition(":")
        if name:
            return getattr(self, f"see_{kind}")(name)  # type: ignore[no-any-return]
        if what in self.attempts:
            return self.cluster.where(self.live(what))
        if what in self.containers:
            return [self.containers[what].state.name]
        if what in self.nodes:
            return [node.free_memory_mb for node in self.cluster.scheduler.nodes() if node.host == what]
        if what.startswith("root"):
            return [shown(self.cluster.policy.queue_info(what).used)]
        return getattr(self, f"see_{what}")()  # type: ignore[no-any-return]

    def live(self, name: str) -> list[RMContainer]:
        return [container for container in self.all_of(name) if container.state.name in ("ACQUIRED", "RUNNING")]

    def see_waits(self) -> list[str]:
        """`early:10 late:6`, in the order in which they are served."""
        names = {attempt: name for name, attempt in self.attempts.items()}
        return [f"{names[attempt]}:{shown(ask.resource)}" for attempt, ask in self.cluster.scheduler.waiting()]

    def see_count(self, name: str) -> list[int]:
        return [len(self.live(name))]

    def see_sizes(self, name: str) -> list[str]:
        return [shown(container.request.resource) for container in self.live(name)]

    def see_gpus(self, name: str) -> list[object]:
        return [device for container in self.live(name) for device in container.gpu_devices]

    def see_has(self, name: str) -> list[str]:
        """The containers that the scheduler has for the attempt, fetched or not."""
        names = {container.entity: key for key, container in self.containers.items()}
        return [names.get(c.entity, "new") for c in self.cluster.scheduler.live_containers(self.attempts[name])]

    def see_room(self, name: str) -> list[str]:
        return [shown(self.cluster.headroom(self.attempts[name]))]

    def see_why(self, name: str) -> list[str]:
        """The cause of its first wait, and the queue whose limit that is."""
        reason = self.cluster.scheduler.waiting_asks(self.attempts[name])[0].reason
        return [reason.cause.name, reason.queue] if reason.cause is WaitCause.QUEUE_LIMIT else [reason.cause.name]

    def see_containers(self, queue: str) -> list[int]:
        return [self.cluster.policy.queue_info(queue).containers]

    def see_maximum(self, queue: str) -> list[str]:
        """Of the default partition."""
        return [shown(self.cluster.policy.queue_info(queue).partitions[0].maximum)]

    def see_pending(self, queue: str) -> list[int]:
        return [self.cluster.policy.queue_info(queue).pending_applications]

    def see_apps(self) -> list[int]:
        """Of each queue, parents first."""
        return [queue.applications for queue in self.cluster.scheduler.queues()]

    def see_first(self) -> list[str]:
        """The five containers that were made first of those that live."""
        names = {container.entity: key for key, container in self.containers.items()}
        return [names[container] for container in self.cluster.context.containers][:5]

    def see_nodes(self) -> list[str]:
        return [node.host for node in self.cluster.scheduler.nodes()]

    def see_reserved(self) -> list[str]:
        """The hosts that are reserved, each for a container that names it."""
        reserved = [node for node in self.cluster.scheduler.nodes() if node.reserved_container is not None]
        held = [c for c in self.cluster.context.containers.values() if c.state.name == "RESERVED"]
        assert {(c.entity, c.node) for c in held} == {
            (node.reserved_container.entity, node.node_id) for node in reserved if node.reserved_container
        }
        return [node.host for node in reserved]

    def see_resized(self) -> list[str]:
        return self.resized
