"""Fixtures that tests of several packages share, and the distribution of tests to the workers of pytest-xdist."""

from __future__ import annotations

import gc
import os
import re
import signal
import site
import socket
import ssl
from collections.abc import Generator, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from dispatcher.util.garbage import Freezer

from .kit import tries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How fast examples come depends on what else the machine does. How many there are does not.
# Continuous integration tries the same examples each time, so that a change is judged by what it changes.
settings.register_profile(
    "suite",
    max_examples=tries(50),
    deadline=None,
    derandomize="TESTS_DERANDOMIZED" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")

# A job in the background of a shell ignores SIGINT, and so would the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SPARK_FILES = (
    "tests/pipeline/spark/",
    "tests/pipeline/cli/test_interrupted_spark.py",
    "tests/pipeline/cli/test_sweep_command.py",
    "tests/test_examples.py",
)
SPARK_REPORT = "tests/pipeline/spark/report/"
SPARK_PROCESSES = (
    "tests/pipeline/cli/test_interrupted_spark.py",
    "tests/pipeline/spark/cluster/",
)
"""They start Spark in processes of their own, and do not use the worker's."""
LONG = re.compile(r"^pytestmark = \[?[^\]]*\bpytest\.mark\.long\b", re.MULTILINE)
"""In the text of a file of which all tests take seconds, alone or together."""

HOST_VARIABLES = (
    "COLUMNS",
    "DISPATCHER_",
    "FORCE_COLOR",
    "HADOOP_",
    "LINES",
    "LISTEN_",
    "NETRC",
    "NOTIFY_SOCKET",
    "NO_COLOR",
    "PG",
    "PYSPARK_",
    "SPARK_",
    "WATCHDOG_",
    "XDG_",
    "YARN_",
)
"""Beginnings of the variables by which the machine configures daemons and commands: no test gets them."""


SPARK_EXTRA = ("tests/pipeline/spark", "tests/pipeline/report/tables")
"""Folders whose fixtures import the packages of the extra spark."""


def needs_spark(nodeid: str) -> bool:
    return nodeid.startswith(SPARK_FILES)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker takes a file's tests whole, so that they share its fixtures.

    Two workers start a Spark of their own: one for the report's tests, one for the others.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if not needs_spark(nodeid) or nodeid.startswith(SPARK_PROCESSES):
                return super()._split_scope(nodeid)
            return SPARK_REPORT if nodeid.startswith(SPARK_REPORT) else "spark"

    return Scheduling(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which the marks select no test: importing them all takes seconds."""
    expression = config.option.markexpr
    path = collection_path.relative_to(config.rootpath).as_posix()
    if path.startswith(SPARK_EXTRA) and find_spec("pyspark") is None:  # the extra has no wheels for every Python
        return True
    if "not spark" in expression and needs_spark(collection_path.relative_to(config.rootpath).as_posix()):
        return True
    if "not long" in expression and collection_path.match("test_*.py") and LONG.search(collection_path.read_text()):
        return True
    return None


def pytest_configure(config: pytest.Config) -> None:
    # Files are handed out in the order in which they are collected.
    config.option.loadscopereorder = False


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep the format of the lines that tests read.

    pytest adds its handlers to each logger that does not propagate, and Spark's loggers, which do not once they have
    logged an error, make each of their handlers write JSON: for all loggers, in all later tests.
    """
    logs = session.config.pluginmanager.get_plugin("logging-plugin")
    for handler in (logs.caplog_handler, logs.report_handler):
        handler.setFormatter = lambda _: None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest pieces of work that a worker takes first: Spark's tests, then files with tests that take seconds."""
    long_files = set()
    for item in items:
        if needs_spark(item.nodeid):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("long") or item.get_closest_marker("slow"):
            long_files.add(item.path)
    items.sort(key=lambda item: (not needs_spark(item.nodeid), item.path not in long_files))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Garbage collections look only at what the tests make: a million objects of pytest's take them half a second.

    While the objects are made, no garbage is collected at all: that would take a quarter of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A worker cannot send a report with a lone surrogate, such as a test may log, and the whole run ends."""
    report = yield
    report.sections = [(title, _sendable(text)) for title, text in report.sections]
    if report.failed and _sendable(text := str(report.longrepr)) != text:
        report.longrepr = _sendable(text)
    return report


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """A main program that a test runs in this process tunes its garbage collection: not that of the tests after it."""
    thresholds = gc.get_threshold()
    yield
    if gc.get_threshold() != thresholds:
        gc.set_threshold(*thresholds)
        gc.callbacks[:] = [each for each in gc.callbacks if not isinstance(each, Freezer)]
        gc.unfreeze()
        gc.freeze()  # as after the collection of the tests: collections have less to look at


@pytest.fixture(scope="session", autouse=True)
def _own_host() -> Iterator[None]:
    """Tests, and the processes that they start, neither see nor are seen by what else runs on the machine.

    The path of the folder is short, as that of a Unix socket has to be.
    """
    with TemporaryDirectory(prefix="run-") as folder, pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(HOST_VARIABLES):
                patch.delenv(name)
        home = Path(folder, "home")
        home.mkdir()
        patch.setenv("PYTHONUSERBASE", site.getuserbase())  # packages may be installed there
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_RUNTIME_DIR", folder)
        classes = os.environ.get("TESTS_SPARK_CLASSES", "")  # see scripts/share_spark_classes.py
        if Path(classes).is_file():
            patch.setenv("SPARK_SUBMIT_OPTS", f"-XX:SharedArchiveFile={classes} -Xlog:cds=off -Xlog:cds+dynamic=off")
        for name in ("NO_PROXY", "no_proxy"):  # pip may need the proxy
            patch.setenv(name, ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost,::1"))))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each client of httpx reads the certificates of all authorities, which takes longer than most tests."""
    bundle = os.environ.get("SSL_CERT_FILE") or (find_spec("certifi") and import_module("certifi").where())
    if not bundle or not Path(bundle).is_file():
        yield
        return
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = tmp_path_factory.mktemp("authorities") / "first.pem"
    first.write_text(
        begin + Path(bundle).read_text("utf-8").partition(begin)[2].partition(end)[0] + end + "\n", "utf-8"
    )
    create = ssl.create_default_context

    def create_with_one(*args: Any, cafile: str | None = None, **more: Any) -> ssl.SSLContext:
        return create(*args, cafile=str(first) if cafile == bundle else cafile, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", create_with_one)
        yield


@pytest.fixture(scope="session")
def connect_url() -> str:
    """Where the test run's Spark serves Spark Connect."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"sc://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture(scope="session")
def spark(connect_url: str) -> Iterator[SparkSession]:
    """One small Spark for the whole test run: it takes seconds to start. It also serves Spark Connect."""
    pytest.importorskip("pyspark")
    from pipeline.spark import SparkUnavailableError, spark_session

    settings = {
        # Spark hands idle workers out in turns. More than two for each task at a time, of tests before, would make it
        # look as if tasks found no connections of those before them.
        "spark.python.factory.idleWorkerMaxPoolSize": "4",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": connect_url.rpartition(":")[2],
    }
    try:
        session = spark_session("local[2]", "tests", settings)
    except SparkUnavailableError as unavailable:
        pytest.skip(str(unavailable))
    with session:
        yield session
