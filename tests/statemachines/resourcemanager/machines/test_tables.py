"""Every event that a state of the resource manager's machines does not take; the others have a case for each arc."""

from __future__ import annotations

from typing import Any

import pytest

from ..builders import EVENT_TYPES, Workshop, declared, event_for
from ..inner import FACTORIES

STATES = [(machine, state.name) for machine, factory in FACTORIES.items() for state in type(factory.initial_state)]


@pytest.mark.parametrize(("machine", "state"), STATES)
def test_each_event_that_the_state_does_not_declare_is_refused_and_counted_and_posts_nothing(
    workshop: Workshop, machine: str, state: str
) -> None:
    table = declared(machine)
    entity: Any = workshop.make(machine, state)
    workshop.posted.events.clear()
    refused = [type.name for type in EVENT_TYPES[machine] if (state, type.name) not in table]

    for number, event in enumerate(refused, 1):
        entity.handle(event_for(entity, event))

        assert (entity.state.name, workshop.posted.events) == (state, []), event
        assert workshop.recorder.machines[machine].invalid == number, event
