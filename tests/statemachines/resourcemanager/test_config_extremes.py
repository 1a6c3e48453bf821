"""Whatever number a configuration may hold, the resource manager runs with it."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from dispatcher import ConfigError, load_config
from statemachines.resourcemanager import Replay, ResourceManagerConfig
from statemachines.simulation.workload import read_workload

pytestmark = pytest.mark.long

TIMEOUT_S = 60.0

Key = tuple[str | int, ...]

NUMBERS = (10**400, 1e308, 10**30, 2**53, 10**12, 1e9, 10_000_000, 10_000, 100, 5e-324)
"""Of these, the greatest that is allowed is tried, and the smallest."""
BASE: dict[str, Any] = {
    "dispatcher": {"queue_capacity": 10_000},
    "metrics": {"enabled": False},
    "nodes": [{"host": "node1", "memory_mb": 4096, "vcores": 4}],
    "scheduler": {"kind": "capacity", "queues": [{"name": "default"}]},
}
JOBS = """{"job.start.ms": 0, "job.queue.name": "default", "job.tasks": [
  {"container.host": "/r/node1", "container.start.ms": 0, "container.end.ms": 20}]}"""


def numeric_keys(model: type[BaseModel], prefix: Key = (), above: tuple[type, ...] = ()) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        yield from _keys_in(field.annotation, (*prefix, name), (*above, model))


def _keys_in(annotation: Any, key: Key, above: tuple[type, ...]) -> Iterator[Key]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation not in above:  # a queue has queues
            yield from numeric_keys(annotation, key, above)
        return
    if annotation in (int, float):
        yield key
        return
    inner = getattr(annotation, "__origin__", None)
    if inner is tuple:
        yield from _keys_in(get_args(annotation)[0], (*key, 0), above)
    elif inner is dict:
        yield from _keys_in(get_args(annotation)[1], (*key, "x"), above)
    else:
        for each in get_args(annotation):
            if each is not NoneType:
                yield from _keys_in(each, key, above)


def with_value(data: dict[str, Any], key: Key, value: float) -> dict[str, Any]:
    copied = copy.deepcopy(data)
    branch: Any = copied
    for part in key[:-1]:
        branch = branch[part] if isinstance(part, int) else branch.setdefault(part, {})
    branch[key[-1]] = value
    return copied


def allowed(key: Key) -> list[ResourceManagerConfig]:
    found = []
    for number in NUMBERS:
        try:
            found.append(load_config(os.devnull, ResourceManagerConfig, with_value(BASE, key, number)))
        except ConfigError as error:
            assert len(str(error)) < 500  # noqa: PT017
    assert found, key
    return [found[0], found[-1]]


KEYS = sorted({key for key in numeric_keys(ResourceManagerConfig) if "accessible_node_labels" not in key}, key=str)


def test_the_keys_are_found() -> None:
    assert {("dispatcher", "queue_capacity"), ("nodes", 0, "gpus"), ("journal", "retention_s")} < set(KEYS)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: ".".join(map(str, key)))
def test_the_greatest_and_the_smallest_number_that_a_key_may_have_is_run_with(key: Key, tmp_path: Path) -> None:
    """`queue_capacity: 10**12` was a MemoryError, and a time of 1e308 s an OverflowError."""
    (tmp_path / "jobs.json").write_text(JOBS)
    for number, config in enumerate(allowed(key)):
        workload = read_workload(tmp_path / "jobs.json", config.simulation.workload_defaults)
        try:
            run = Replay(workload, config, journal_path=tmp_path / f"journal{number}")
        except ConfigError:
            assert "capacity" in str(key)  # what the queues add up to is checked with all of them
            continue
        run.start()
        try:
            assert run.wait(TIMEOUT_S)
        finally:
            run.stop()
        run.raise_failure()
        assert run.manager.dispatcher.stats().failed == 0
