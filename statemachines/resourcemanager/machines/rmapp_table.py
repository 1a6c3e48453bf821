"""The states of an application and what leads from one to another, row for row those of YARN's RMAppImpl."""

from __future__ import annotations

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager.events.rmapp import RMAppEventType as E
from statemachines.resourcemanager.machines import rmapp_hooks as hooks
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.states import RMAppState
from statemachines.resourcemanager.machines.states import RMAppState as S


def _build() -> StateMachineFactory[RMAppState, RMApp]:
    factory: StateMachineFactory[RMAppState, RMApp] = StateMachineFactory(S.NEW, "RMApp")
    return (
        factory.add_transition(S.NEW, S.NEW, E.NODE_UPDATE, hooks.note_node_update)
        .add_transition(S.NEW, S.NEW_SAVING, E.START, hooks.store_new)
        .add_transition(
            S.NEW,
            # YARN declares FINAL_SAVING, too, and never goes there.
            {S.SUBMITTED, S.ACCEPTED, S.FINISHED, S.FAILED, S.KILLED, S.FINAL_SAVING},
            E.RECOVER,
            hooks.recover,
        )
        .add_transition(S.NEW, S.KILLED, E.KILL, hooks.end)
        .add_transition(S.NEW, S.FINAL_SAVING, E.APP_REJECTED, hooks.save_failed)
        .add_transition(S.NEW_SAVING, S.NEW_SAVING, E.NODE_UPDATE, hooks.note_node_update)
        .add_transition(S.NEW_SAVING, S.SUBMITTED, E.APP_NEW_SAVED, hooks.add_to_scheduler)
        .add_transition(S.NEW_SAVING, S.FINAL_SAVING, E.KILL, hooks.save_killed)
        .add_transition(S.NEW_SAVING, S.FINAL_SAVING, E.APP_REJECTED, hooks.save_failed)
        .add_transition(S.NEW_SAVING, S.FAILED, E.APP_SAVE_FAILED, hooks.end)
        .add_transition(S.SUBMITTED, S.SUBMITTED, E.NODE_UPDATE, hooks.note_node_update)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.APP_REJECTED, hooks.save_failed)
        .add_transition(S.SUBMITTED, S.ACCEPTED, E.APP_ACCEPTED, hooks.start_first_attempt)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.KILL, hooks.save_killed)
        .add_transition(S.ACCEPTED, S.ACCEPTED, E.NODE_UPDATE, hooks.note_node_update)
        .add_transition(S.ACCEPTED, S.RUNNING, E.ATTEMPT_REGISTERED)
        .add_transition(S.ACCEPTED, {S.ACCEPTED, S.FINAL_SAVING}, E.ATTEMPT_FAILED, hooks.retry_or_fail)
        .add_transition(S.ACCEPTED, S.FINAL_SAVING, E.ATTEMPT_FINISHED, hooks.save_finished)
        .add_transition(S.ACCEPTED, S.KILLING, E.KILL, hooks.kill_attempt)
        .add_transition(S.ACCEPTED, S.FINAL_SAVING, E.ATTEMPT_KILLED, hooks.save_killed)
        .add_transition(S.ACCEPTED, S.ACCEPTED, E.APP_RUNNING_ON_NODE, hooks.note_node_used)
        .add_transition(S.ACCEPTED, S.ACCEPTED, E.ATTEMPT_LAUNCHED, hooks.note_launch)
        .add_transition(S.RUNNING, S.RUNNING, E.NODE_UPDATE, hooks.note_node_update)
        .add_transition(S.RUNNING, S.FINAL_SAVING, E.ATTEMPT_UNREGISTERED, hooks.save_unregistered)
        .add_transition(S.RUNNING, S.FINISHED, E.ATTEMPT_FINISHED, hooks.end)
        .add_transition(S.RUNNING, S.RUNNING, E.APP_RUNNING_ON_NODE, hooks.note_node_used)
        .add_transition(S.RUNNING, {S.ACCEPTED, S.FINAL_SAVING}, E.ATTEMPT_FAILED, hooks.retry_or_fail)
        .add_transition(S.RUNNING, S.KILLING, E.KILL, hooks.kill_attempt)
        .add_transition(
            S.FINAL_SAVING, {S.FINISHING, S.FAILED, S.KILLED, S.FINISHED}, E.APP_UPDATE_SAVED, hooks.final_state_saved
        )
        .add_transition(S.FINAL_SAVING, S.FINAL_SAVING, E.ATTEMPT_FINISHED, hooks.finished_before_stored)
        .add_transition(S.FINAL_SAVING, S.FINAL_SAVING, E.APP_RUNNING_ON_NODE, hooks.note_node_used)
        .add_transition(S.FINAL_SAVING, S.FINAL_SAVING, (E.NODE_UPDATE, E.KILL, E.APP_NEW_SAVED))
        .add_transition(S.FINISHING, S.FINISHED, E.ATTEMPT_FINISHED, hooks.end)
        .add_transition(S.FINISHING, S.FINISHING, E.APP_RUNNING_ON_NODE, hooks.note_node_used)
        .add_transition(S.FINISHING, S.FINISHING, (E.NODE_UPDATE, E.KILL))
        .add_transition(S.KILLING, S.KILLING, E.APP_RUNNING_ON_NODE, hooks.note_node_used)
        .add_transition(S.KILLING, S.FINAL_SAVING, E.ATTEMPT_KILLED, hooks.save_killed)
        .add_transition(S.KILLING, S.FINAL_SAVING, E.ATTEMPT_UNREGISTERED, hooks.save_unregistered)
        .add_transition(S.KILLING, S.FINISHED, E.ATTEMPT_FINISHED, hooks.end)
        .add_transition(S.KILLING, {S.FINAL_SAVING}, E.ATTEMPT_FAILED, hooks.kill_or_fail)
        .add_transition(S.KILLING, S.KILLING, (E.NODE_UPDATE, E.ATTEMPT_REGISTERED, E.APP_UPDATE_SAVED, E.KILL))
        .add_transition(S.FINISHED, S.FINISHED, E.APP_RUNNING_ON_NODE, hooks.clean_up_node)
        .add_transition(S.FINISHED, S.FINISHED, (E.NODE_UPDATE, E.ATTEMPT_UNREGISTERED, E.ATTEMPT_FINISHED, E.KILL))
        .add_transition(S.FAILED, S.FAILED, E.APP_RUNNING_ON_NODE, hooks.clean_up_node)
        .add_transition(S.FAILED, S.FAILED, (E.KILL, E.NODE_UPDATE))
        .add_transition(S.KILLED, S.KILLED, E.APP_RUNNING_ON_NODE, hooks.clean_up_node)
        .add_transition(
            S.KILLED,
            S.KILLED,
            (E.APP_ACCEPTED, E.APP_REJECTED, E.KILL, E.ATTEMPT_FINISHED, E.ATTEMPT_FAILED, E.NODE_UPDATE, E.START),
        )
        .install_topology()
    )


FACTORY: StateMachineFactory[RMAppState, RMApp] = _build()
