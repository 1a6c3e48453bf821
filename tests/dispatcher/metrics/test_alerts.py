"""The alert rules and the Grafana boards, by promtool and by a real Prometheus that scrapes a daemon in trouble."""

from __future__ import annotations

import errno
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..log_of_test import log_on
from ._daemon import Daemon, Job
from ._prometheus import BINARY, PROMTOOL, eventually, free_port, prometheus

pytestmark = pytest.mark.long

CONFIG = Path(__file__).parents[3] / "config"
RULES = (CONFIG / "alerts.yaml").read_text()
BOARDS = {path.stem: json.loads(path.read_text()) for path in (CONFIG / "grafana").glob("*.json")}
ALERTS = [rule["alert"] for group in yaml.safe_load(RULES)["groups"] for rule in group["rules"]]

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
needs_prometheus = pytest.mark.skipif(BINARY is None, reason="it is not installed: apt-get install prometheus")


def run_promtool(folder: Path, rules: str) -> subprocess.CompletedProcess[str]:
    """Run the tests in config/ against `rules`."""
    assert PROMTOOL is not None
    (folder / "alerts.yaml").write_text(rules)
    (folder / "alerts_test.yaml").write_text((CONFIG / "alerts_test.yaml").read_text())
    command = [PROMTOOL, "test", "rules", str(folder / "alerts_test.yaml")]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@needs_promtool
def test_each_rule_passes_its_tests(tmp_path: Path) -> None:
    ran = run_promtool(tmp_path, RULES)

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_each_rule_has_a_test_that_it_fires_and_one_that_it_is_silent() -> None:
    names = [test["name"] for test in yaml.safe_load((CONFIG / "alerts_test.yaml").read_text())["tests"]]

    assert [alert for alert in ALERTS if not any(name.startswith(f"{alert} fires") for name in names)] == []
    assert [alert for alert in ALERTS if not any(name.startswith(f"{alert} is silent") for name in names)] == []


@pytest.mark.minutes
@needs_promtool
def test_the_tests_notice_each_rule_that_never_fires(tmp_path: Path) -> None:
    rules = yaml.safe_load(RULES)
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        rule["expr"] = f"({rule['expr']}) > +Inf"

    ran = run_promtool(tmp_path, yaml.safe_dump(rules))

    assert ran.returncode != 0
    assert [alert for alert in ALERTS if f"name: {alert} fires" not in ran.stdout + ran.stderr] == []


TOO_EAGER = [
    ("DaemonGone", "for: 1m", "for: 0s"),
    ("DispatcherFailed", "== 1", ">= 0"),
    ("HandlerHangs", "> 60", "> 50"),
    ("NoProgress", "_size > 0", "_size >= 0"),
    ("NoProgress", "on (job, instance, dispatcher)", "on (job)"),
    ("NoProgress", "for: 1m", "for: 0s"),
    ("EventsFail", "for: 5m", "for: 0s"),
    ("HandlerIsSlow", "> 0.8", "> 0.3"),
    ("HandlerIsSlow", "> 1000", "> 100"),
    ("QueueGrows", "deriv(dispatcher_event_queue_size[10m]) > 0", "deriv(dispatcher_event_queue_size[10m]) < 1000"),
    ("QueueGrows", "> 1000", "> 100"),
    ("QueueNearlyFull", "for: 2m", "for: 0s"),
    ("QueueNearlyFull", "/ dispatcher_event_queue_capacity > 0.9", "> 90"),
    ("EventsAreRefused", "full|timeout", "full|timeout|draining"),
    ("JournalFailed", "dispatcher_journal_failed", "dispatcher_failed"),
    ("JournalOutstandingGrows", "> 0", "> -1e9"),
    ("JournalOutstandingGrows", "> 1000", "> 100"),
    ("StoreFails", "> 0", ">= 0"),
    ("InvalidTransitions", "> 0", ">= 0"),
    ("Degraded", "for: 1m", "for: 0s"),
    ("DeadLettersLost", "> 0", ">= 0"),
    ("LogLinesLost", "> 0", ">= 0"),
    ("StoreIsSlow", "for: 1m", "for: 0s"),
    ("ApplicationsWait", "> 900", "> 800"),
    ("NodesUnhealthy", "for: 5m", "for: 1m"),
    ("NodesUnhealthy", "LOST", "LOST|DECOMMISSIONED"),
    ("ApplicationsFail", "> 0.1", "> 0.04"),
    ("ApplicationsFail", "> 2", "> 0"),
]


@pytest.mark.minutes
@needs_promtool
@pytest.mark.parametrize("turn", range(3))
def test_the_tests_notice_each_rule_that_fires_on_what_only_looks_like_it(tmp_path: Path, turn: int) -> None:
    """One change of each alert at a time: the alerts have tests of their own, and promtool takes seconds."""
    changes = {alert: [change for name, *change in TOO_EAGER if name == alert] for alert in ALERTS}
    changed = {alert: changes[alert][turn] for alert in ALERTS if len(changes[alert]) > turn}
    rules = RULES
    for alert, (strict, eager) in changed.items():
        head, name, rest = rules.partition(f"- alert: {alert}\n")
        assert strict in rest.partition("- alert:")[0]
        rules = head + name + rest.replace(strict, eager, 1)

    ran = run_promtool(tmp_path, rules)

    assert ran.returncode != 0
    assert [alert for alert in changed if f"alertname: {alert}," not in ran.stdout + ran.stderr] == []


def shortened(rules: str) -> str:
    """The rules with seconds for minutes."""
    rules = re.sub(r"\[\d+m\]", "[4s]", rules)
    rules = re.sub(r"for: \d+m", "for: 1s", rules)
    return rules.replace("offset 1m", "offset 1s").replace("> 60", "> 1").replace("> 900", "> 1")


@pytest.mark.slow
@needs_prometheus
@pytest.mark.timeout(600)
def test_each_alert_fires_and_resolves_in_a_real_prometheus(tmp_path: Path) -> None:
    port, fired = free_port(), dict[str, Any]()
    with prometheus(tmp_path, f"127.0.0.1:{port}", shortened(RULES)) as server:

        def fire(trouble: Any, *alerts: str) -> None:
            """Make trouble again and again until all the alerts fire."""

            def all_fire() -> bool:
                trouble()
                firing = server.firing()
                fired.update(firing)
                return set(alerts) <= set(firing)

            eventually(all_fire, lambda: f"{alerts} should fire; these do: {sorted(server.firing())}")

        def resolve(*alerts: str) -> None:
            eventually(
                lambda: not set(alerts) & set(server.firing()),
                lambda: f"{alerts} should be resolved; these fire: {sorted(server.firing())}",
            )

        def fail() -> None:
            raise LookupError("lost")

        with Daemon(tmp_path / "journal", port) as daemon:
            eventually(lambda: server.query("up == 1"), lambda: "the daemon is not scraped")
            resolve(*ALERTS)

            with log_on("/dev/full") as full:
                resolve("LogLinesLost")  # Prometheus knows the file
                daemon.store.fails = True
                daemon.newest.mailbox_executor.execute(fail)
                daemon.post(daemon.bounded, Job.HUNG, *[Job.STARTED] * 1990)

                def failures() -> None:
                    daemon.post(daemon.central, Job.STARTED, Job.BROKEN)
                    daemon.post(daemon.losing, Job.BROKEN)
                    daemon.post(daemon.bounded, *[Job.STARTED] * 10)
                    daemon.fail_application()
                    full.warning("a line that is lost")

                of_hanging = ("HandlerHangs", "NoProgress", "QueueNearlyFull", "EventsAreRefused")
                of_failing = ("EventsFail", "InvalidTransitions")
                lasting = ("Degraded", "DeadLettersLost", "DispatcherFailed", "LogLinesLost")
                of_manager = ("StoreFails", "StoreIsSlow", "ApplicationsFail")
                fire(failures, *of_hanging, *of_failing, *lasting, *of_manager)

            daemon.post(daemon.central, Job.HUNG, *[Job.STARTED] * 1200)
            daemon.trouble_the_cluster()
            of_growing = ("QueueGrows", "JournalOutstandingGrows")
            fire(
                lambda: daemon.post(daemon.central, *[Job.STARTED] * 10),
                *of_growing,
                *("ApplicationsWait", "NodesUnhealthy"),
            )
            summary = fired["HandlerHangs"]["annotations"]["summary"]
            assert re.fullmatch(r"(central|bounded): the event Job\.HUNG has run for [\d.]+s", summary)
            daemon.opened.set()
            resolve(*of_hanging, *of_failing, *of_growing)

            def slow_ones() -> None:
                if daemon.central.queue_size() < 2000:
                    daemon.post(daemon.central, *[Job.SLOW] * 1000)

            fire(slow_ones, "HandlerIsSlow")
            daemon.journal.log.fail(OSError(errno.ENOSPC, "No space left on device"))
            fire(lambda: None, "JournalFailed")
            resolve("HandlerIsSlow")
        fire(lambda: None, "DaemonGone")
        with Daemon(tmp_path / "another journal", port):
            resolve(*ALERTS)
    assert set(ALERTS) == set(fired)


def expressions(board: Any) -> dict[str, str]:
    """Every expression of the board by the titles of its panels, as Grafana sends it for all there is."""
    found = {}
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expression = re.sub(r"\$(dispatcher|queue)\b", ".*", target["expr"]).replace("$__rate_interval", "5s")
            assert "$" not in expression, expression
            found[f"{panel['title']} {target['refId']}"] = expression
    return found


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_has_its_variables_and_distinct_panels(name: str) -> None:
    board = BOARDS[name]
    variables = {each["name"]: each.get("definition", "") for each in board["templating"]["list"]}
    ids = [panel["id"] for panel in board["panels"]]

    assert board["uid"] == name
    assert "label_values" in variables["dispatcher"]
    assert all('dispatcher=~"$dispatcher"' in t["expr"] for p in board["panels"] for t in p.get("targets", ()))
    assert len(set(ids)) == len(ids)


def test_the_boards_have_the_panels_that_an_operator_looks_for() -> None:
    titles = {name: {panel["title"] for panel in board["panels"]} for name, board in BOARDS.items()}

    assert titles["dispatcher"] >= {
        *("Queue by type", "Rate by type", "Share of time by type", "Slow runs", "What runs now", "Rejected by reason"),
        *("Dropped by reason", "Journal", "Transitions", "Entities by state"),
    }
    assert titles["resourcemanager"] >= {
        *("Nodes by state", "Used memory by queue", "Pending memory by queue", "Oldest wait by queue"),
        *("Nodes that do not run", "Nodes without series", "Store failures", "Age of the state"),
    }


@pytest.mark.slow
@needs_prometheus
def test_every_expression_of_the_boards_has_a_result(tmp_path: Path) -> None:
    port = free_port()
    with prometheus(tmp_path, f"127.0.0.1:{port}") as server, Daemon(tmp_path / "journal", port) as daemon:
        daemon.post(daemon.bounded, Job.HUNG, *[Job.STARTED] * 2100)  # the last ones are refused
        daemon.post(daemon.newest, Job.HUNG, *[Job.STARTED] * 10)  # the oldest ones are dropped
        daemon.trouble_the_cluster()
        for title, expression in [each for board in BOARDS.values() for each in expressions(board).items()]:

            def has_result(expression: str = expression) -> bool:
                daemon.post(daemon.central, Job.STARTED, Job.BROKEN, Job.SLOW)
                return bool(server.query(expression))

            eventually(has_result, lambda title=title, expression=expression: f"{title}: no result of {expression}")
