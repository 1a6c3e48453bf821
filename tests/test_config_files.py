"""The files in config/: they load, and describe every key."""

from __future__ import annotations

import re
import runpy
import tomllib
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from dispatcher import load_config
from dispatcher.config import configure_logging
from statemachines.resourcemanager import ResourceManagerConfig

from .documents import shown_families
from .kit.commands import ROOT, run_here

CONFIG = ROOT / "config"


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


def test_the_daemons_file_has_every_key_with_its_default() -> None:
    data = yaml.safe_load((CONFIG / "resourcemanager.yaml").read_text())

    def at(path: str) -> Any:
        value = data
        for part in path.split("."):
            value = value[part]
        return value

    expected = keys_of(ResourceManagerConfig)
    nodes, port = expected.pop("nodes"), expected.pop("web.port")
    (queue,) = expected["scheduler.queues"]
    expected["scheduler.queues"] = [{**keys_of(type(queue)), "name": queue.name, "queues": []}]
    assert {key: at(key) for key in expected} == {
        key: list(default) if isinstance(default, tuple) else default for key, default in expected.items()
    }
    assert (nodes, port) == ((), None)
    assert at("web.port") == 0, "the file opens the web address"


def test_the_daemons_file_describes_every_key_as_its_model_does() -> None:
    described = runpy.run_path(str(ROOT / "scripts" / "describe_config.py"))["described"]
    text = (CONFIG / "resourcemanager.yaml").read_text()

    assert text == described(text), "the descriptions have changed: run scripts/describe_config.py"


def test_every_key_has_a_description() -> None:
    def models_in(model: type[BaseModel]) -> set[type[BaseModel]]:
        found = {model}
        for field in model.model_fields.values():
            for each in (field.annotation, *get_args(field.annotation)):
                if isinstance(each, type) and issubclass(each, BaseModel) and each is not model:
                    found |= models_in(each)
        return found

    missing = [
        f"{model.__name__}.{name}"
        for model in models_in(ResourceManagerConfig)
        for name, field in model.model_fields.items()
        if not field.description
    ]

    assert "QueueConfig" in {model.__name__ for model in models_in(ResourceManagerConfig)}
    assert missing == []


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
    groups = yaml.safe_load((CONFIG / "alerts.yaml").read_text())["groups"]
    rules = [rule for each in groups for rule in each["rules"] if rule["alert"] != "DaemonGone"]  # Prometheus's `up`
    used = [re.findall(r"\b(?:dispatcher|statemachine|resourcemanager)_\w+", rule["expr"]) for rule in rules]
    suffixes = {"counter": ["_total"], "gauge": [""], "summary": ["_sum", "_count"]}
    exported = {metric.name + suffix for metric in shown_families() for suffix in suffixes.get(metric.type, [])}

    assert all(used)
    assert {metric for metrics in used for metric in metrics} <= exported


def test_every_file_for_a_daemon_can_be_shown_and_is_in_the_wheel() -> None:
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["dispatcher"]
    examples = ROOT / "dispatcher" / "examples"  # a link to `config`; in a source distribution a copy of it
    in_wheel = {path for pattern in shipped for path in (ROOT / "dispatcher").glob(pattern)}
    files = {path for path in CONFIG.rglob("*") if path.is_file() and "workloads" not in path.parts}
    names = {path.relative_to(CONFIG).as_posix().removesuffix(".yaml") for path in files}

    listed = run_here("config", "list")

    assert set(listed.out.split()) == names
    assert {examples / path.relative_to(CONFIG) for path in files} <= in_wheel
    assert {"alerts", "alerts_test", "grafana/dispatcher.json", "grafana/resourcemanager.json"} <= names
    for name in names:
        assert run_here("config", "show", name).out.strip()
