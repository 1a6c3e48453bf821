"""`dispatcher run` and `dispatcher graph`."""

from __future__ import annotations

import logging
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dispatcher import AsyncDispatcher, CompositeService, JournalWriter, Service, load_config
from dispatcher.cli.console import echo, echo_text
from dispatcher.cli.imported import imported
from dispatcher.config import configure_logging, parse_config
from dispatcher.errors import ConfigError
from dispatcher.journal.run_config import write_run_config
from dispatcher.supervision.health import parts_of
from dispatcher.supervision.signals import StopSignals
from dispatcher.supervision.systemd import Supervision
from dispatcher.util.figures import counted
from dispatcher.util.folders import timed
from dispatcher.util.garbage import tune_garbage_collection
from statemachines.factory import StateMachineFactory
from statemachines.graph import FORMATS
from statemachines.registry import FACTORIES, factory_of
from statemachines.resourcemanager import Resource, ResourceManager, ResourceManagerConfig
from statemachines.resourcemanager.read.series import ClusterSeries
from statemachines.resourcemanager.records.config import NodeConfig
from statemachines.resourcemanager.records.resource import named
from statemachines.simulation.cluster import SimulatedCluster
from statemachines.simulation.queues import check_queues_count, for_workload, in_words
from statemachines.simulation.workload import NodeSpec, Workload, read_workload

if TYPE_CHECKING:
    from dispatcher.ops import OpsDoor
    from statemachines.resourcemanager.web import RMDoor

log: logging.Logger = logging.getLogger(__name__)

_WEB_EXTRA = "it needs the extra: pip install 'central-dispatcher[web]'"

GraphFormat: Enum = Enum("GraphFormat", {name: name for name in FORMATS})  # type: ignore[misc]


def run(
    config: Annotated[Path, typer.Argument(help="configuration, such as config/resourcemanager.yaml")],
    logging_config: Annotated[
        Path | None, typer.Option("--logging", help="logging configuration, such as config/logging.yaml")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", help="TCP port of the web address, instead of the configured one; 0: a free one"),
    ] = None,
) -> None:
    """Run the resource manager in real time until SIGTERM or SIGINT, then drain it."""
    try:
        settings = load_config(config, ResourceManagerConfig)
    except ConfigError as error:
        if config.suffix == ".json":
            raise ConfigError(f"{error}. If it is a workload, name it under `workload:` in a configuration") from error
        raise
    check_queues_count(settings)
    if port is not None:
        settings = _with_port(settings, port)
    configure_logging(logging_config)
    workload = _workload(settings)
    configured, settings = settings, for_workload(settings, workload)
    journal = None
    if settings.journal_path is not None:
        folder = timed(settings.journal_path)
        journal = JournalWriter(folder, settings.journal)
        write_run_config(folder, settings, f"A run in real time, with the configuration file {config}.")
    manager = ResourceManager(settings, node_managers=SimulatedCluster, journal=journal)
    manager.bring(workload)
    tune_garbage_collection(regularly=True)
    with StopSignals(ends_process=True) as signals, Supervision(manager) as supervision:
        dispatchers = [part for part in parts_of(manager) if isinstance(part, AsyncDispatcher)]
        for each in dispatchers:
            each.register_service_listener(lambda _: signals.notify())
        daemon, door = _daemon(settings, manager)
        with daemon:
            echo(f"{settings.name}: running with {counted(len(workload.nodes), 'node')}")
            if settings is not configured:
                echo(in_words(settings.scheduler.queues))
            if manager.metrics_server is not None:
                echo(f"metrics: {manager.metrics_server.url}")
            if door is not None and settings.web.enabled:
                echo(f"web: {door.host.url or door.socket_path}")
                if door.host.url is not None:
                    echo(f"pages: {door.host.url}/cluster")
            elif settings.web.enabled and settings.web.port is not None:
                echo(f"no web address: {_WEB_EXTRA}", err=True)
            if journal is not None:
                echo(f"journal: {journal.path}")
            supervision.started()
            while not signals.wait() and all(each.failure_cause is None for each in dispatchers):
                continue
            echo(f"{settings.name}: stopping")
            supervision.stopping()
    stats = manager.dispatcher.stats()
    echo(
        f"{settings.name}: stopped; events handled {stats.handled}, failed {stats.failed}, discarded {stats.discarded}"
    )
    failed = [each for each in dispatchers if each.failure_cause is not None]
    for each in failed:
        echo(f"{settings.name}: failed: dispatcher {each.name}: {each.failure_cause!r}", err=True)
    if failed:
        raise typer.Exit(1)
    raise typer.Exit(signals.exit_code)


def _with_port(settings: ResourceManagerConfig, port: int) -> ResourceManagerConfig:
    data = settings.model_dump(exclude_unset=True)
    data["web"] = {**data.get("web", {}), "port": port}
    return parse_config(data, ResourceManagerConfig, source="--port")


def _daemon(settings: ResourceManagerConfig, manager: ResourceManager) -> tuple[Service, RMDoor | OpsDoor | None]:
    """The resource manager behind its door, if one is configured and its extra is installed; and that door."""
    door = _door(settings, manager)
    daemon = CompositeService(f"{settings.name}-daemon")
    if door is not None:
        daemon.add_service(door)
    if settings.metrics.enabled and (door is None or not settings.web.enabled):
        series = ClusterSeries(manager)
        manager.show_metrics("series", series)
        daemon.add_service(series)
    daemon.add_service(manager)
    return daemon, door


def _door(settings: ResourceManagerConfig, manager: ResourceManager) -> RMDoor | OpsDoor | None:
    if not (settings.web.enabled or settings.ops.enabled):
        return None
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        log.info("%s: no web address: %s", settings.name, _WEB_EXTRA)
        return None
    from dispatcher.ops import OpsDoor
    from statemachines.resourcemanager.web import RMDoor

    return RMDoor(manager) if settings.web.enabled else OpsDoor(settings.ops, settings.web, name=settings.name)


def graph(
    machine: Annotated[
        str,
        typer.Argument(
            help=f"which one: {', '.join(FACTORIES).lower()}; or MODULE:FACTORY, a StateMachineFactory of yours"
        ),
    ],
    format: Annotated[GraphFormat, typer.Option("--format", "-f", help="how to print it")] = GraphFormat.mermaid,  # type: ignore[attr-defined]
) -> None:
    """Print the table of a state machine."""
    factory = factory_of(machine) if ":" not in machine else imported(machine, machine, "factory")
    if not isinstance(factory, StateMachineFactory):
        raise ConfigError(f"{machine}: takes a StateMachineFactory, and found an object of {type(factory).__name__}")
    echo_text(FORMATS[format.value](factory))


def _workload(settings: ResourceManagerConfig) -> Workload:
    """The daemon's nodes and its workload, if one is configured; configured nodes replace the workload's own."""
    first: dict[str, int] = {}
    for index, node in enumerate(settings.nodes):
        other = first.setdefault(node.host, index)
        if other != index:  # a second node of the host would register as the first one again
            raise ConfigError(
                f"nodes[{index}].host: {node.host} is already the host of nodes[{other}]; name each node once"
            )
    nodes = tuple(map(_node_spec, settings.nodes))
    if settings.workload is None:
        return Workload("none", nodes, ())
    workload = read_workload(settings.workload, settings.simulation.workload_defaults, needs_nodes=not nodes)
    for remark in workload.remarks:
        echo(f"{settings.workload}: {remark}")
    return Workload(workload.name, nodes or workload.nodes, workload.applications)


def _node_spec(node: NodeConfig) -> NodeSpec:
    capacity = Resource(node.memory_mb, node.vcores * 1000, node.gpus, others=named(node.resources))
    return NodeSpec(node.host, capacity, node.rack, node.gpu_model, node.partition)
