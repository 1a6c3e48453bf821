"""The daemon's configuration as a user gets it wrong: one line says what and where, and nothing is started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ....kit.commands import run_here

pytestmark = pytest.mark.long

CAPACITY = "scheduler: {kind: capacity, queues: ["
SQLITE = "metrics: {enabled: false}\nstate_store: {kind: sqlite, path: rm.db}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # A daemon that is not refused is stopped at once, and is no SystemExit with 2.
    monkeypatch.setattr("statemachines.cli.StopSignals.wait", lambda signals: True)


def refusal(text: str) -> str:
    """The one line with which `dispatcher run` refuses this configuration."""
    Path("rm.yaml").write_text(text)

    code, out, err = run_here("run", "rm.yaml")

    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("dispatcher: ")
    return err.removeprefix("dispatcher: ").rstrip()


NODES = ", ".join(f"{{host: {host}, memory_mb: 1, vcores: 1}}" for host in ("a", "b", "a"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scheduler: {kind: fair}", "scheduler.kind: 'fair' is not allowed"),
        ("nodes: [{host: a, memory_mb: 1, vcores: 1, gpu: 1}]", "unknown key nodes[0].gpu"),
        ("nodes: [{host: a}]", "nodes[0].memory_mb is missing"),
        ("nm_expiry_interval_s: 0", "nm_expiry_interval_s: 0 is not allowed"),
        (
            "nm_heartbeat_interval_ms: 600000",
            "nm_heartbeat_interval_ms: 600000 ms is no less than the silence of 600 s",
        ),
        (
            "{simulation: {heartbeat_interval_ms: 700}, nm_heartbeat_interval_ms: 5, am_expiry_interval_s: 0.7}",
            "simulation.heartbeat_interval_ms: 700 ms is no less than the silence of 0.7 s",
        ),
        ("state_store: {kind: sqlite}", "path: required for kind sqlite"),
        ("state_store: {path: rm.db}", "not allowed for kind memory"),
        ("nodes: [", "line 1"),
        ("- nodes", "a mapping of keys to values is expected"),
        ("workload: nowhere", "nowhere: cannot be read"),
        (CAPACITY + "]}", "scheduler.queues: there must be a queue"),
        (CAPACITY + "{name: a, capacity: 50}, {name: b, capacity: 40}]}", "the capacities add up to 90"),
        (
            CAPACITY + "{name: a, capacity: 50}, {name: a, capacity: 50}]}",
            "scheduler.queues[1].name: scheduler.queues[0] is also named a",
        ),
        (CAPACITY + "{name: a.b}]}", "scheduler.queues[0].name: 'a.b' is not allowed"),
        (CAPACITY + "{name: a, maximum_capacity: 50}]}", "scheduler.queues[0].capacity: 100 is more than"),
        (CAPACITY + "{name: a, default_node_label: gpu}]}", "scheduler.queues[0].default_node_label: gpu"),
        (
            CAPACITY + "{name: a, maximum_lifetime_s: 5, default_lifetime_s: 6}]}",
            "scheduler.queues[0].default_lifetime_s",
        ),
        # The daemon reported two nodes and had one, which had registered twice.
        (f"nodes: [{NODES}]", "nodes[2].host: a is already the host of nodes[0]; name each node once"),
        (
            "nodes: [{host: a, memory_mb: 1, vcores: 1, resources: {fpga: -3}}]",
            "nodes[0].resources.fpga: -3 is not allowed",
        ),
    ],
)
def test_wrong_configuration_is_refused_in_one_line(text: str, said: str) -> None:
    assert said in refusal(text)


def test_file_that_is_no_state_store_is_refused_in_one_line() -> None:
    Path("rm.db").write_text("dear diary, today I met a resource manager\n" * 50)

    assert refusal(SQLITE).startswith(f"{Path.cwd()}/rm.db: not an SQLite database")


def test_port_that_is_taken_is_refused_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        assert f"metrics.port {port}: cannot listen there" in refusal(f"metrics: {{port: {port}}}")
