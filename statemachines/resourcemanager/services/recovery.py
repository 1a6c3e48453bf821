"""A resource manager takes up the work of the one before: applications and attempts from the store.

What ran then is still running. With work-preserving recovery the nodes that register again bring their containers, and
the masters go on as soon as they have registered anew. Without it, attempts that had not ended fail without being
counted, their applications get new ones, and what the nodes still run is cleaned up as unknown.

Threading: handler thread only, before any node, master or client is let in.
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
    """Make every stored application again, in the order of their submission, and put each where it was.

    Ended ones are kept as they are. On return the scheduler knows the others, so that nodes and masters may register.
    """
    for app_id, recovered in state.applications.items():
        # The clock may have been set back meanwhile: two resource managers of one time would give out the same ids.
        context.cluster_timestamp = max(context.cluster_timestamp, cluster_timestamp_of(app_id) + 1)
        app = context.apps[app_id] = RMApp(
            context, app_id, recovered.data.submission, submit_ms=recovered.data.submit_ms
        )
        app.handle(RMAppRecoverEvent(app_id, recovered))
        if not context.config.work_preserving_recovery:
            _give_up_live_attempt(context, recovered)
    if state.applications:
        live = sum(recovered.data.state is None for recovered in state.applications.values())
        log.info("recovered %d applications; %d of them have not ended", len(state.applications), live)


def _give_up_live_attempt(context: RMContext, recovered: RecoveredApplication) -> None:
    """As if the node of its master had said that it was stopped for the resource manager's sake, which is no failure.

    A master that the cluster does not run is left to its monitor: nobody can stop it.
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
