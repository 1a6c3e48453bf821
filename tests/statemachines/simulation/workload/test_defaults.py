"""The sizes that a workload file leaves out."""

from __future__ import annotations

import pytest

from dispatcher import ConfigError
from statemachines.simulation.workload import WorkloadDefaults


def test_defaults_equal_the_hadoop_simulators() -> None:
    assert WorkloadDefaults().model_dump() == {
        "node_memory_mb": 10240,
        "node_vcores": 10,
        "node_gpus": 0,
        "am_memory_mb": 1024,
        "am_vcores": 1,
        "container_memory_mb": 1024,
        "container_vcores": 1,
        "nodes_per_rack": 40,
    }


@pytest.mark.parametrize("name", WorkloadDefaults.model_fields)
@pytest.mark.parametrize("value", [-1, 1.5, True, "8", 2**53 + 1])
def test_defaults_out_of_bounds_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        WorkloadDefaults.model_validate({name: value})
