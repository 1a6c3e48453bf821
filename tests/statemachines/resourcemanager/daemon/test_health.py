"""What probes are told of a resource manager in real time."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from statemachines.resourcemanager import ResourceManager, ResourceManagerConfig

from ....kit import until
from ....kit.holding import held

pytestmark = pytest.mark.long

TIMEOUT_S = 60.0


def ask(manager: ResourceManager, path: str) -> list[dict[str, Any]]:
    """The reasons that are about this resource manager: other tests have dispatchers, too."""
    assert manager.metrics_server is not None
    try:
        with urllib.request.urlopen(manager.metrics_server.url_of(path), timeout=TIMEOUT_S) as answer:
            body = answer.read()
    except urllib.error.HTTPError as refused:
        body = refused.read()
    reasons: list[dict[str, Any]] = json.loads(body)["reasons"]
    return [each for each in reasons if each.get("dispatcher", each.get("service", "")).startswith(manager.name)]


def named(reasons: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(each["reason"], each.get("dispatcher") or each["service"]) for each in reasons}


def test_a_client_s_call_that_hangs_is_stuck_and_a_drain_is_seen() -> None:
    """A call of a client is a mail, of which no metric said that it hung."""
    config = ResourceManagerConfig.model_validate(
        {"name": "health-rm", "dispatcher": {"handler_warn_after_s": 0.001, "liveness_stuck_after_s": 0.001}}
    )
    manager = ResourceManager(config)
    with manager:
        until(lambda: ask(manager, "/readyz") == [])
        with held(manager.context.execute):
            until(lambda: ("stuck", "health-rm") in named(ask(manager, "/readyz")))
            until(lambda: ("stuck", "health-rm") in named(ask(manager, "/livez")))

            stop = threading.Thread(target=manager.stop)
            stop.start()
            until(lambda: ("draining", "health-rm") in named(ask(manager, "/readyz")))
        stop.join(TIMEOUT_S)
        assert not stop.is_alive()


def test_the_dispatcher_of_its_store_is_held_to_the_same_times(tmp_path: Path) -> None:
    config = ResourceManagerConfig.model_validate(
        {
            "dispatcher": {"handler_warn_after_s": 7, "liveness_stuck_after_s": 70},
            "state_store": {"kind": "sqlite", "path": tmp_path / "state.db"},
        }
    )
    manager = ResourceManager(config)

    store = manager.store.dispatcher.view  # type: ignore[attr-defined]

    assert (store.handler_warn_after_s, store.liveness_stuck_after_s) == (7, 70)
