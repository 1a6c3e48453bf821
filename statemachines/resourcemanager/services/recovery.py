"""Recovers applications and attempts from the state store after a restart.

The cluster has kept running. With work-preserving recovery, nodes register again with their containers, and masters
resume once they have registered again. Without it, live attempts fail without being counted, their applications start
new ones, and containers that still run are cleaned up as unknown.

Threading: handler thread only, before any node, master or client is served.
"""

from __future__ import annotations

import logging

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.exit_status import EXIT_KILLED_BY_RESOURCEMANAGER
from statemachines.resourcemanager.events.records import ContainerStatus
from statemachines.resourcemanager.events.rmapp import RMAppRecoverEvent
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.ids import cluster_timestamp_of
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.statestore.records import ApplicationAttemptStateData, RecoveredApplication, RMState

log = logging.getLogger(__name__)


def recover(context: RMContext, state: RMState) -> None:
    """Recreate every stored application in its stored state, in the order of submission.

    On return the scheduler has those that have not ended, so nodes and masters may register.
    """
    for app_id, recovered in state.applications.items():
        # The clock may have been set back: with the same timestamp, two resource managers would allocate the same ids.
        context.cluster_timestamp = max(context.cluster_timestamp, cluster_timestamp_of(app_id) + 1)
        app = context.apps[app_id] = RMApp(
            context, app_id, recovered.data.submission, submit_ms=recovered.data.submit_ms
        )
        app.handle(RMAppRecoverEvent(app_id, recovered))
        if not context.config.work_preserving_recovery:
            _give_up_live_attempt(context, recovered)
    if state.applications:
        live = sum(recovered.data.state is None for recovered in state.applications.values())
        log.info("recovered %d applications, %d of them live", len(state.applications), live)


def _give_up_live_attempt(context: RMContext, recovered: RecoveredApplication) -> None:
    """End the attempt as if its master's node had stopped it for the resource manager, which counts as no failure.

    An unmanaged master cannot be stopped, and is left to its monitor.
    """
    if recovered.data.state is not None or not recovered.attempts:
        return
    last: ApplicationAttemptStateData = list(recovered.attempts.values())[-1]
    if last.state is not None or last.master_container is None:
        return
    master = last.master_container
    status = ContainerStatus(
        master.container_id, EXIT_KILLED_BY_RESOURCEMANAGER, "the resource manager restarted without it"
    )
    context.post(
        RMAppAttemptEvent(
            RMAppAttemptEventType.CONTAINER_FINISHED, last.attempt_id, status.diagnostics, status, master.node
        )
    )
