"""Brings a workload to a resource manager: its nodes at once, its applications when their time comes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from statemachines.resourcemanager.errors import ApplicationNotFoundError
from statemachines.resourcemanager.node_spec import NodeSpec
from statemachines.resourcemanager.resource_manager import ResourceManager
from statemachines.resourcemanager.submission import ApplicationSubmission
from statemachines.simulation.agenda import Errand
from statemachines.simulation.cluster import SimulatedCluster
from statemachines.simulation.recorded_waits import RecordedWaits
from statemachines.simulation.specs import ApplicationSpec


class WorkloadRunner:
    """The clients of a simulated cluster. Handler thread only.

    Applications are taken one by one, each when the one before has been submitted: a workload may make them as it
    goes, and need not fit into memory.
    """

    def __init__(
        self, manager: ResourceManager, nodes: Iterable[NodeSpec], applications: Iterable[ApplicationSpec]
    ) -> None:
        self._manager = manager
        self._context = manager.context
        self._clients = manager.clients
        self._nodes = nodes
        self._applications = iter(applications)
        self._cluster: SimulatedCluster  # from the start on
        self.waits = RecordedWaits()

    def start(self) -> None:
        """Register the nodes, and enter the first application. The workload's time 0 is now."""
        self._cluster = SimulatedCluster.of(self._manager)
        self._cluster.start_ms = self._context.now_ms()
        for node in self._nodes:
            self._cluster.add_node(node)
        self._enter_next()

    def _enter_next(self) -> None:
        spec = next(self._applications, None)
        if spec is not None:
            self._cluster.agenda.at(self._cluster.start_ms + spec.submit_ms, self._submit, Errand(spec))

    def _submit(self, errand: Errand) -> None:
        spec: ApplicationSpec = errand.about
        app_id = self._clients.submit_application(
            ApplicationSubmission(
                spec.name, spec.am_resource, spec.user, spec.queue, spec.am_host, spec.gpu_models, spec.max_attempts
            )
        )
        self._cluster.specs[app_id] = spec
        if spec.kill_ms is not None:
            self._cluster.agenda.at(self._cluster.start_ms + spec.kill_ms, self._kill, Errand(app_id))
        if spec.recorded_wait_ms == 0:
            # A moment later: then all that follows from the submission has been handled.
            self._cluster.agenda.at(self._context.now_ms() + 1, self._look, Errand(app_id))
        self._enter_next()

    def _look(self, errand: Errand) -> None:
        self.waits.look(self._context, errand.about)

    def _kill(self, errand: Errand) -> None:
        with contextlib.suppress(ApplicationNotFoundError):  # it has ended, and is no longer kept
            self._clients.force_kill_application(errand.about)
