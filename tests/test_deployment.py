"""The files that run a daemon: the unit for systemd, and the pod in the documents."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher import load_config
from statemachines.resourcemanager import ResourceManagerConfig

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "config" / "systemd" / "dispatcher.service"
DRAIN_TIMEOUT_S = load_config(
    ROOT / "config" / "resourcemanager.yaml", ResourceManagerConfig
).dispatcher.drain_timeout_s


@pytest.fixture(scope="module")
def unit() -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    return parser


def pod() -> Any:
    page = (ROOT / "docs" / "health.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return yaml.safe_load(block)["spec"]


def test_the_unit_waits_for_ready_and_for_the_stop_and_is_restarted_by_the_watchdog(unit: ConfigParser) -> None:
    expected = {
        "Type": "notify",
        "WatchdogSec": "60",
        "Restart": "on-failure",
        "SuccessExitStatus": "143 130",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
    }

    assert {name: unit["Service"][name] for name in expected} == expected
    assert float(unit["Service"]["TimeoutStopSec"]) > DRAIN_TIMEOUT_S


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze on this machine")
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", UNIT.read_text(encoding="utf-8"), flags=re.M)
    (tmp_path / UNIT.name).write_text(text, encoding="utf-8")

    done = subprocess.run(
        [analyze, "verify", str(tmp_path / UNIT.name)], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, UNIT.name in done.stderr) == (0, False), done.stderr


def test_the_pod_is_probed_where_the_server_answers_and_given_time_to_drain() -> None:
    spec = pod()
    (container,) = spec["containers"]
    ports = {port["name"] for port in container["ports"]}
    probes = {probe: container[probe]["httpGet"] for probe in ("readinessProbe", "livenessProbe")}

    assert spec["terminationGracePeriodSeconds"] > DRAIN_TIMEOUT_S
    assert probes["readinessProbe"]["path"] == "/readyz"
    assert probes["livenessProbe"]["path"] == "/livez"
    assert {probe["port"] for probe in probes.values()} <= ports


def test_the_port_of_the_pod_can_be_configured(tmp_path: Path) -> None:
    (tmp_path / "rm.yaml").write_text("metrics: {host: 0.0.0.0, port: 9464}\n")

    metrics = load_config(tmp_path / "rm.yaml", ResourceManagerConfig).metrics

    assert metrics.port == pod()["containers"][0]["ports"][0]["containerPort"]
