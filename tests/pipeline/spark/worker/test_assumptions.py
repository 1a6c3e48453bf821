"""What `pipeline.spark.worker` relies on inside PySpark, so that a test names what a release of it has changed."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession


def module(name: str) -> ast.Module:
    found = importlib.util.find_spec(name)
    assert found is not None, f"the module {name} does not exist: {relies('')}"
    assert found.origin is not None
    return ast.parse(Path(found.origin).read_text())


def relies(file: str) -> str:
    return f"pipeline/spark/worker/{file} relies on this, and pyspark {pyspark.__version__} has changed it"


def function_of(module: ast.Module, name: str) -> ast.FunctionDef:
    found = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert found, f"no function {name}: {relies('')}"
    return found[0]


def calls_in(module: ast.Module, function: str) -> list[str]:
    """The source of the calls in a function."""
    return [ast.unparse(node) for node in ast.walk(function_of(module, function)) if isinstance(node, ast.Call)]


@pytest.fixture(scope="module")
def daemon() -> ast.Module:
    return module("pyspark.daemon")


@pytest.mark.parametrize("name", ["os", "signal"])
def test_the_daemon_uses_the_modules_that_are_patched(daemon: ast.Module, name: str) -> None:
    """It looks `os._exit` and `signal.signal` up at each call."""
    imported = [alias.name for node in daemon.body if isinstance(node, ast.Import) for alias in node.names]

    assert name in imported, f"pyspark.daemon does not import {name} as a module: {relies('process.py')}"


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("worker", "signal.signal(SIGHUP, SIG_DFL)"),
        ("worker", "signal.signal(SIGTERM, SIG_DFL)"),
        ("manager", "os.fork("),
        ("manager", "os._exit("),
        ("manager", "gc.collect()"),  # after a task: without it there would be nothing to freeze
        ("manager", "os.environ.get('SPARK_REUSE_WORKER')"),
    ],
)
def test_the_daemon_and_its_workers_call_what_is_patched_or_read(daemon: ast.Module, function: str, call: str) -> None:
    found = [each for each in calls_in(daemon, function) if each.startswith(call)]

    assert found, f"{function} does not call {call}: {relies('process.py')}"


def test_the_file_that_a_worker_writes_to_has_the_name_that_is_looked_for() -> None:
    """A bill for calls would tell of another name, or the counter `unpaced_tasks`."""
    parameters = [each.arg for each in function_of(module("pyspark.worker"), "main").args.args]

    assert "outfile" in parameters, relies("output.py")


def test_pyspark_handles_ctrl_c_itself_and_leads_to_its_connection(spark: SparkSession) -> None:
    source = inspect.getsource(pyspark.SparkContext)
    client = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]

    assert "signal.SIGINT" in source, f"SparkContext sets no handler of SIGINT: {relies('interruption.py')}"
    assert callable(client.get_thread_connection), relies("interruption.py")
