"""The registry of all machines."""

from __future__ import annotations

import pytest

from statemachines.registry import FACTORIES, HADOOP_CLASSES, UnknownMachineError, factory_of

from .test_tables import ABSORBING


def test_all_machines_are_there_by_the_name_that_their_factory_has() -> None:
    assert list(FACTORIES) == list(ABSORBING)
    assert [factory.name for factory in FACTORIES.values()] == list(FACTORIES)


@pytest.mark.parametrize("name", FACTORIES)
def test_name_is_found_in_upper_and_lower_case(name: str) -> None:
    assert factory_of(name) is factory_of(name.lower()) is factory_of(name.upper()) is FACTORIES[name]


@pytest.mark.parametrize("name", ["", "rmap", "rmapp ", "JobImpl"])
def test_unknown_name_is_rejected_in_one_line_with_the_known_names(name: str) -> None:
    with pytest.raises(UnknownMachineError) as refused:
        factory_of(name)

    assert refused.value.name == name
    assert str(refused.value) == f"no state machine '{name}'; expected one of {', '.join(ABSORBING).lower()}"


def test_each_machine_has_the_class_of_hadoop_that_logs_its_transitions() -> None:
    assert set(HADOOP_CLASSES.values()) == set(FACTORIES)
    assert {
        name: HADOOP_CLASSES[name] for name in ("ContainerImpl", "Container", "ApplicationImpl", "Application")
    } == {
        "ContainerImpl": "NMContainer",
        "Container": "NMContainer",  # in Hadoop 2
        "ApplicationImpl": "NMApplication",
        "Application": "NMApplication",
    }
