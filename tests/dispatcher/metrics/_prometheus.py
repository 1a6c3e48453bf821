"""A real Prometheus, such as Debian's package `prometheus`, that scrapes and judges at once."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BINARY = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")
MOST_S = 60.0
"""For what comes about within seconds, on a machine that does much else."""


class Prometheus:
    """Asks a running server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self._url}{path}?{urllib.parse.urlencode(query)}", timeout=MOST_S) as answer:
            return json.loads(answer.read())["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query that are numbers."""
        result: list[dict[str, Any]] = self.ask("/api/v1/query", query=expression)["result"]
        return [sample for sample in result if sample["value"][1] != "NaN"]

    def firing(self) -> dict[str, dict[str, Any]]:
        """The alerts that fire now, by name; one of each name."""
        alerts = self.ask("/api/v1/alerts")["alerts"]
        return {alert["labels"]["alertname"]: alert for alert in alerts if alert["state"] == "firing"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def eventually(condition: Callable[[], Any], what: Callable[[], Any]) -> Any:
    """Look again and again until `condition()` is true; returns it. Fails the test with `what()` if it never is."""
    deadline = time.monotonic() + MOST_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)
    return found


@contextmanager
def prometheus(folder: Path, target: str, rules: str | None = None) -> Iterator[Prometheus]:
    """A server that scrapes `target`, such as 127.0.0.1:9100, four times a second, and knows `rules`."""
    assert BINARY is not None
    config = {
        "global": {"scrape_interval": "250ms", "evaluation_interval": "250ms", "scrape_timeout": "250ms"},
        "scrape_configs": [{"job_name": "daemon", "static_configs": [{"targets": [target]}]}],
    }
    if rules is not None:
        (folder / "rules.yaml").write_text(rules)
        config["rule_files"] = [str(folder / "rules.yaml")]  # type: ignore[assignment]
    (folder / "prometheus.yaml").write_text(json.dumps(config))  # which is YAML, too
    port = free_port()
    log = (folder / "prometheus.log").open("w")
    server = subprocess.Popen(
        [
            BINARY,
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=log,
        stderr=log,
    )
    asked = Prometheus(f"http://127.0.0.1:{port}")

    def is_up() -> bool:
        try:
            return bool(asked.query("up"))
        except (urllib.error.URLError, ConnectionError):
            return False

    try:
        eventually(is_up, (folder / "prometheus.log").read_text)
        yield asked
    finally:
        server.terminate()
        server.wait(MOST_S)
        log.close()
