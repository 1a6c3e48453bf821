"""The door for application masters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ....kit.scenarios import play
from ..builders import Workshop, send
from ..inner import NodesListManagerEventType
from .masters import Masters

CALLS = ("register", "allocate", "finish")

WHO_MAY_CALL = {
    **{
        f"a master of an attempt that never was is told to exit when it wants to {call}": f"refused {call}"
        " -> refusal UnknownAttempt ; posted | says is_not_registered:_its_master_should_exit"
        for call in CALLS
    },
    **{
        f"a master of an attempt that has ended is told to exit when it wants to {call}": f"ended | refused {call}"
        " -> refusal UnknownAttempt ; posted"
        for call in CALLS
    },
    **{
        f"a master that has not registered is told to when it wants to {call}": f"attempt LAUNCHED | refused {call}"
        " -> refusal ApplicationMasterNotRegistered ; posted | says call_register_application_master_first"
        for call in CALLS[1:]
    },
    **{
        f"a master that has finished is told to exit when it wants to {call}": f"registered | finish | forget"
        f" | refused {call} -> refusal UnknownAttempt ; posted | says has_finished:_it_should_exit"
        for call in CALLS[:2]
    },
    # A busy resource manager ended an attempt whose master had called: the call's event was still queued.
    **{
        f"a call to {call} is a sign of life before its event is handled": "registered"
        f"{' | session' if call == 'register' else ''} | watch | +1000 | {call} -> lives_until 1000"
        for call in CALLS
    },
    "a master that calls out of turn lives": "attempt LAUNCHED | watch | +1000 | refused allocate -> lives_until 1000",
}
REGISTERING = {
    "registration gives the attempt the address of its master": "attempt LAUNCHED to_a"
    " | register node1 8030 http://node1/ui -> posted REGISTERED ; registered node1 8030 http://node1/ui"
    " ; queue root.a ; previous",
    **{
        f"a master registers once{fields and ', which is ' + fields}": f"registered {fields} | refused register"
        " -> refusal InvalidApplicationMasterRequest ; posted | says is_already_registered"
        for fields in ("", "unmanaged", "keeps")
    },
    # The responses to the one before are not repeated.
    "a master learns the maximum allocation when it registers": "largest 1024 4000 | attempt RUNNING | register"
    " -> largest 1024 4000",
    "an unmanaged master may register again where containers are kept": "registered unmanaged keeps | allocate 0"
    f" | register | refused allocate {2**31 - 1} -> refusal InvalidApplicationMasterRequest | allocate 0 -> id 1",
    "the next attempt learns of the containers that go on": "second keeps | live 3 | register"
    " -> previous container_0_0001_01_000003",
    # As after a restart of the resource manager, which knows of no response.
    "an attempt that is registered again begins anew": "registered | allocate 0 | session"
    " | refused allocate 1 -> refusal ApplicationMasterNotRegistered | refused finish"
    " -> refusal ApplicationMasterNotRegistered | register | allocate 0 -> id 1",
}
HEARTBEATS = {
    "a heartbeat updates the attempt": "registered | progress 0.25 http://new -> posted STATUS_UPDATE"
    " ; status 0.25 http://new",
    **{
        f"a progress of {said} counts as {kept}": f"registered | progress {said} -> status {kept} None"
        for said, kept in (("-0.5", 0.0), ("1.5", 1.0), ("nan", 0.0), ("inf", 1.0), ("1.0", 1.0))
    },
    "its own container is the master's own to release": "registered | release 1 2 -> released 1 2 ; asked 1024",
    "finished containers come once, and the nodes may forget them": "registered | exited 2 | exited 3 node2:1"
    " | exited 4 | allocate -> finished 2 3 4 ; pulled node1:1=2,4 node2:1=3 | allocate -> finished",
    # A master that never knew of them counted them as its own.
    "the next attempt gets no earlier containers, which the nodes may forget": "second | register | exited 1/2"
    " | exited 2 | allocate -> finished 2 ; pulled node1:1=container_0_0001_01_000002,2",
    "the next attempt gets earlier containers if they are kept": "second keeps | register | exited 1/2 | exited 2"
    " | allocate -> finished container_0_0001_01_000002 2",
    "changes of nodes come in their order": "registered | node node1:1 NODE_UNUSABLE | node node1:1 NODE_USABLE"
    " | allocate -> updated node1:1=NODE_UNUSABLE node1:1=NODE_USABLE",
    "a notice of preemption says how much, and the response has the headroom": "registered | noticed 2 3 | room large"
    " | allocate -> preempted 2 3 ; preempted_mb 2048 ; headroom 2048",
}
GIVING_BACK = {
    **{
        f"nothing is done if a master releases {container}": f"registered | refused release 2 {container}"
        f" -> refusal InvalidContainerRelease ; posted ; asked ; released | says {says}"
        for container, says in (
            ("container_0_0002_01_000001", "does_not_belong_to_appattempt_0_0001_000001"),
            ("container_0_0001_02_000001", "does_not_belong_to_appattempt_0_0001_000001"),
            ("task_1", "is_not_the_id_of_a_container"),
        )
    },
    "containers that are kept can be released by the next attempt": "second keeps | register | release 1/2"
    " -> released container_0_0001_01_000002 | refused release container_0_0002_01_000001"
    " -> refusal InvalidContainerRelease",
    "resizes that are granted come with the response": "registered | live 2 | live 3 | resize 2=large 3=huge"
    " -> resized 2 ; granted 2=2048",
    **{
        f"a container beyond the maximum allocation is refused and nothing is done, by {call}": "largest 1024 any"
        f" | registered to_a | refused {call} -> refusal InvalidResourceRequest ; asked ; posted"
        " | says in_queue_root.a,_<memory:1024_MB,_vCores:any>"
        for call in ("ask small large", "resize 2=large")
    },
    "containers of others and ended ones are not resized": "registered | others 2"
    " | resize container_0_0002_01_000002=large 2=large -> resized ; granted",
}
RESPONSE_IDS = {
    "response ids count the heartbeats": "registered | allocate 0 -> id 1 | allocate 1 -> id 2 | allocate 2 -> id 3",
    # Otherwise no master could start or release the containers that the lost response allocated.
    "a response that got lost comes again, and nothing is done again": "registered | allocated 2 | ask_with 0 small"
    " | forget | ask_with 0 small -> again True ; got 2 ; asked 1024 ; posted"
    " | allocate 1 -> id 2 ; got ; posted STATUS_UPDATE",
    "a heartbeat that comes again is a sign of life": "registered | allocate 0 | watch | +1000 | allocate 0"
    " -> lives_until 1000",
    **{
        f"a response id of {id} after the second response is refused": "registered | allocate 0 | allocate 1 | forget"
        f" | refused allocate {id} -> refusal InvalidApplicationMasterRequest ; posted"
        f" | says sent_response_id_{id};_its_last_response_had_2"
        for id in (-1, 0, 3, 17)
    },
    "before the first heartbeat there is no response to repeat": "registered | refused allocate -1"
    " -> refusal InvalidApplicationMasterRequest | says its_last_response_had_0",
    "after the last response id comes 0": f"registered | last_id {2**31 - 1} | allocate {2**31 - 1} -> id 0"
    f" | allocate {2**31 - 1} -> again True | allocate 0 -> id 1",
    "a master without response ids is not checked": "registered | allocate -> id 1 | allocate -> id 2",
}
FINISHING = {
    "a master may ask again whether its end is stored": "registered | finish -> done False | finish -> done False"
    " ; posted UNREGISTERED | app FINISHING | finish -> done True ; posted",
    # The master called before the restart, and calls again after it: it never registers with this one.
    **{
        f"an end as {state} that was stored before a restart is known": f"ended {state} | finish -> done True"
        for state in ("FINISHING", "FINISHED", "FAILED", "KILLED")
    },
}
SCENARIOS = WHO_MAY_CALL | REGISTERING | HEARTBEATS | GIVING_BACK | RESPONSE_IDS | FINISHING


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_masters(script: str) -> None:
    play(Masters(), script)


def test_later_attempt_begins_with_the_present_nodes(workshop: Workshop) -> None:
    context, attempt = workshop.context, workshop.attempt()
    context.node_changes.note("node1:1", NodesListManagerEventType.NODE_USABLE)

    send(attempt, "START")
    context.node_changes.note("node1:1", NodesListManagerEventType.NODE_UNUSABLE)

    heard = context.node_changes.since(context.master_sessions[attempt.entity].heard)
    assert heard == [("node1:1", NodesListManagerEventType.NODE_UNUSABLE)]


@pytest.mark.long
@given(losses=st.lists(st.booleans(), max_size=30))
def test_nothing_is_lost_or_comes_twice_whatever_responses_get_lost(losses: list[bool]) -> None:
    masters = Masters()
    masters.play("registered")
    allocated: list[str] = []
    finished: list[str] = []
    response_id = 0
    for number, is_lost in enumerate([*losses, False, False], start=2):
        if number < len(losses) + 3:
            masters.scheduler.allocated.append(masters.desk.live(masters.entity, number, "ALLOCATED"))
            masters.play("exited", str(number))
        masters.play("allocate", str(response_id))
        if not is_lost:
            allocated += masters.look("got")
            finished += masters.look("finished")
            response_id = masters.response.response_id

    everything = [str(number) for number in range(2, len(losses) + 3)]
    assert (allocated, finished) == (everything, everything)
