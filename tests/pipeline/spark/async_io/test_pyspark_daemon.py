"""What `workers` relies on in PySpark's daemon, so that a test names what a new version changed.

A worker closes its connections at its end because `os._exit` and `signal.signal` are replaced in it. That works only
while the daemon looks both up in their modules at each call.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pyspark
import pytest

WORKER_END = f"pipeline/spark/async_io/workers.py relies on this, and pyspark {pyspark.__version__} has changed it"


@pytest.fixture(scope="module")
def daemon() -> ast.Module:
    found = importlib.util.find_spec("pyspark.daemon")
    assert found is not None, f"the module pyspark.daemon does not exist: {WORKER_END}"
    assert found.origin is not None
    return ast.parse(Path(found.origin).read_text())


def calls_in(daemon: ast.Module, function: str) -> list[str]:
    """The source of the calls in a function of the daemon."""
    found = [node for node in daemon.body if isinstance(node, ast.FunctionDef) and node.name == function]
    assert found, f"pyspark.daemon has no function {function}: {WORKER_END}"
    return [ast.unparse(node) for node in ast.walk(found[0]) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("module", ["os", "signal"])
def test_the_daemon_uses_the_modules_that_are_patched(daemon: ast.Module, module: str) -> None:
    imported = [alias.name for node in daemon.body if isinstance(node, ast.Import) for alias in node.names]

    assert module in imported, f"pyspark.daemon does not import {module} as a module: {WORKER_END}"


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM"])
def test_a_worker_asks_for_the_default_action_of_the_signals_that_end_it(daemon: ast.Module, name: str) -> None:
    asked = f"signal.signal({name}, SIG_DFL)"

    assert asked in calls_in(daemon, "worker"), f"a worker does not call {asked}: {WORKER_END}"


def test_a_worker_leaves_by_os_exit(daemon: ast.Module) -> None:
    calls = calls_in(daemon, "manager")

    assert [call for call in calls if call.startswith("os.fork(")], f"no worker is forked by os.fork(): {WORKER_END}"
    assert [call for call in calls if call.startswith("os._exit(")], f"a worker does not call os._exit(): {WORKER_END}"


def test_workers_read_from_the_environment_whether_they_are_reused(daemon: ast.Module) -> None:
    asked = "os.environ.get('SPARK_REUSE_WORKER')"

    assert asked in calls_in(daemon, "manager"), f"the daemon does not read {asked}: {WORKER_END}"
