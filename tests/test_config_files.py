"""The files in config/: they load, and describe every key."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from dispatcher.config import configure_logging, load_config
from statemachines.resourcemanager import ResourceManagerConfig
from statemachines.resourcemanager.config import QueueConfig

CONFIG = Path(__file__).parents[1] / "config"


def keys_of(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Every key of a model with its default, those of nested models with dots; lists of models count as one."""
    keys: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            keys |= keys_of(annotation, f"{prefix}{name}.")
        else:
            keys[prefix + name] = field.get_default(call_default_factory=True)
    return keys


def test_the_daemons_file_describes_every_key_and_shows_its_default() -> None:
    text = (CONFIG / "resourcemanager.yaml").read_text()
    data = yaml.safe_load(text)

    def at(path: str) -> Any:
        value = data
        for part in path.split("."):
            value = value[part]
        return value

    expected = keys_of(ResourceManagerConfig)
    nodes = expected.pop("nodes")
    (queue,) = expected["scheduler.queues"]
    expected["scheduler.queues"] = [{**keys_of(QueueConfig), "name": queue.name, "queues": []}]
    assert {key: at(key) for key in expected} == expected
    assert nodes == ()
    for key in {part for path in expected for part in path.split(".")} | QueueConfig.model_fields.keys() - {"name"}:
        lines = text.splitlines()
        index = next(i for i, line in enumerate(lines) if line.strip().startswith(f"{key}:"))
        described = [line for line in lines[max(0, index - 4) : index] if line.strip().startswith("#")]
        assert described, f"{key} has no description above it"


@pytest.mark.parametrize("name", ["resourcemanager.yaml", "replay.yaml"])
def test_the_shipped_configuration_loads(name: str) -> None:
    assert load_config(CONFIG / name, ResourceManagerConfig).name == "ResourceManager"


def test_every_key_of_a_node_is_described() -> None:
    text = (CONFIG / "resourcemanager.yaml").read_text()
    (node_model,) = (arg for arg in get_args(ResourceManagerConfig.model_fields["nodes"].annotation) if arg is not ...)

    assert all(name in text for name in node_model.model_fields)


def test_the_logging_configuration_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("logging.config.dictConfig", seen.append)

    configure_logging(CONFIG / "logging.yaml")

    assert seen[0]["root"]["level"] == "INFO"


def test_the_alert_rules_use_metrics_that_exist() -> None:
    rules = yaml.safe_load((CONFIG / "alerts.yaml").read_text())["groups"][0]["rules"]
    exported = (
        "dispatcher_events_failed_total",
        "dispatcher_events_rejected_total",
        "dispatcher_failed",
        "dispatcher_journal_failed",
        "dispatcher_event_queue_size",
        "dispatcher_handler_running_seconds",
        "statemachine_invalid_transitions_total",
    )

    assert all(any(metric in rule["expr"] for metric in exported) for rule in rules)
