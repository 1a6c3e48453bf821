"""`dispatcher run` and `dispatcher graph`."""

from __future__ import annotations

import logging
import time
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from dispatcher import JournalWriter, load_config
from dispatcher.config import configure_logging
from dispatcher.errors import ConfigError
from dispatcher.signals import StopSignals
from dispatcher.util.garbage import tune_garbage_collection
from statemachines.graph import FORMATS
from statemachines.registry import FACTORIES, factory_of
from statemachines.resourcemanager import Resource, ResourceManager, ResourceManagerConfig
from statemachines.resourcemanager.config import NodeConfig
from statemachines.resourcemanager.resource import named
from statemachines.simulation.cluster import SimulatedCluster
from statemachines.simulation.workload import NodeSpec, Workload, read_workload

log = logging.getLogger(__name__)

GraphFormat = Enum("GraphFormat", {name: name for name in FORMATS})  # type: ignore[misc]


def run(
    config: Annotated[Path, typer.Argument(help="configuration, such as config/resourcemanager.yaml")],
    logging_config: Annotated[
        Path | None, typer.Option("--logging", help="logging configuration, such as config/logging.yaml")
    ] = None,
) -> None:
    """Run the resource manager in real time until SIGTERM or SIGINT, then drain it."""
    settings = load_config(config, ResourceManagerConfig)
    configure_logging(logging_config)
    workload = _workload(settings)
    journal = None
    if settings.journal_path is not None:
        folder = settings.journal_path / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        journal = JournalWriter(folder, settings.journal)
    manager = ResourceManager(settings, node_managers=SimulatedCluster, journal=journal)
    manager.bring(workload)
    tune_garbage_collection()
    with StopSignals(ends_process=True) as signals:
        manager.dispatcher.register_service_listener(lambda _: signals.notify())
        with manager:
            typer.echo(f"{settings.name}: running with {len(workload.nodes)} nodes")
            if manager.metrics_server is not None:
                typer.echo(f"metrics: {manager.metrics_server.url}")
            if journal is not None:
                typer.echo(f"journal: {journal.path}")
            while not signals.wait() and manager.dispatcher.failure_cause is None:
                continue
            typer.echo(f"{settings.name}: stopping")
    dispatcher = manager.dispatcher
    typer.echo(
        f"{settings.name}: stopped; events handled {dispatcher.handled}, failed {dispatcher.failed}, "
        f"discarded {dispatcher.discarded}"
    )
    if dispatcher.failure_cause is not None:
        typer.echo(f"{settings.name}: failed: {dispatcher.failure_cause!r}", err=True)
        raise typer.Exit(1)
    raise typer.Exit(signals.exit_code)


def graph(
    machine: Annotated[str, typer.Argument(help=f"which state machine: {', '.join(FACTORIES).lower()}")],
    format: Annotated[GraphFormat, typer.Option("--format", "-f", help="how to print it")] = GraphFormat.mermaid,  # type: ignore[attr-defined]
) -> None:
    """Print the table of a state machine."""
    typer.echo(FORMATS[format.value](factory_of(machine)), nl=False)


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
    workload = read_workload(settings.workload, settings.simulation.workload_defaults)
    return Workload(workload.name, nodes or workload.nodes, workload.applications)


def _node_spec(node: NodeConfig) -> NodeSpec:
    capacity = Resource(node.memory_mb, node.vcores * 1000, node.gpus, others=named(node.resources))
    return NodeSpec(node.host, capacity, node.rack, node.gpu_model, node.partition)
