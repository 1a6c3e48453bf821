"""The files in config/: they load, and describe every key."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from dispatcher import load_config
from statemachines.resourcemanager import ResourceManagerConfig

from .documents import config_fields, shown_families
from .kit.commands import ROOT, run_here

CONFIG = ROOT / "config"


def test_the_daemons_file_has_every_key_with_its_default() -> None:
    data = yaml.safe_load((CONFIG / "resourcemanager.yaml").read_text())
    expected = ResourceManagerConfig().model_dump(mode="json")

    assert (data.pop("nodes") != [], data["web"].pop("port")) == (True, 0), "it has nodes, and opens the web address"
    assert (expected.pop("nodes"), expected["web"].pop("port")) == ([], None)
    assert data == expected


def test_the_daemons_file_describes_every_key_as_its_model_does() -> None:
    described = runpy.run_path(str(ROOT / "scripts" / "describe_config.py"))["described"]
    text = (CONFIG / "resourcemanager.yaml").read_text()

    assert text == described(text), "the descriptions have changed: run scripts/describe_config.py"


def test_every_key_has_a_description() -> None:
    assert [path for path, field in config_fields().items() if not field.description] == []


@pytest.mark.parametrize("name", ["resourcemanager.yaml", "replay.yaml"])
def test_the_shipped_configuration_loads(name: str) -> None:
    assert load_config(CONFIG / name, ResourceManagerConfig).name == "ResourceManager"


def test_every_key_of_a_node_is_described() -> None:
    text = (CONFIG / "resourcemanager.yaml").read_text()
    (node_model,) = (arg for arg in get_args(ResourceManagerConfig.model_fields["nodes"].annotation) if arg is not ...)

    assert all(name in text for name in node_model.model_fields)


def test_the_logging_configuration_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("logging.config.dictConfig", seen.append)
    (tmp_path / "rm.yaml").write_text("workload: nowhere\n")

    run_here("run", tmp_path / "rm.yaml", "--logging", CONFIG / "logging.yaml")

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
