"""Spark sessions for the command and the tests, and a clear word where Spark cannot run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from dispatcher.errors import DispatcherError


class SparkUnavailableError(DispatcherError):
    """PySpark or a Java that it can use is missing. One line, fit to be shown to a user as it is."""


try:
    from pyspark.sql import SparkSession
except ModuleNotFoundError as missing:
    raise SparkUnavailableError(
        f"Spark cannot run: the package {missing.name} is not installed. Run: pip install 'central-dispatcher[spark]'"
    ) from missing

MINIMUM_JAVA = 17
_JAVA_TIMEOUT_S = 30.0
_LOGGING = Path(__file__).with_name("log4j2.properties")
_JAVA_ADVICE = f"Install Java {MINIMUM_JAVA} or newer, or point JAVA_HOME at one."


def require_java() -> int:
    """Major version of the Java that Spark will start; runs `java -version` and waits for it.

    Looks where Spark looks: in JAVA_HOME if that is set, else on the PATH.

    Raises:
        SparkUnavailableError: there is none, it does not run, or it is older than Spark 4 needs.
    """
    java = _find_java()
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkUnavailableError(f"Spark cannot run: {java} -version failed ({error}). {_JAVA_ADVICE}") from error
    # Java 8 and older call themselves 1.8; the answer is on stderr, below what JAVA_TOOL_OPTIONS adds.
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is None:
        raise SparkUnavailableError(f"Spark cannot run: {java} -version names no version. {_JAVA_ADVICE}")
    version = int(found[1])
    if version < MINIMUM_JAVA:
        raise SparkUnavailableError(
            f"Spark cannot run: {java} is Java {version}, Spark 4 needs {MINIMUM_JAVA}. {_JAVA_ADVICE}"
        )
    return version


def _find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if not os.access(java, os.X_OK):
            raise SparkUnavailableError(
                f"Spark cannot run: JAVA_HOME is {home}, but there is no {java}. {_JAVA_ADVICE}"
            )
        return str(java)
    on_path = shutil.which("java")
    if on_path is None:
        raise SparkUnavailableError(f"Spark cannot run: no Java, neither in JAVA_HOME nor on the PATH. {_JAVA_ADVICE}")
    return on_path


def spark_session(
    master: str = "local[*]",
    app_name: str = "dispatcher",
    config: Mapping[str, str] | None = None,
    *,
    long_run: bool = False,
) -> SparkSession:
    """The running session of this process, or a new one; blocks for the seconds that Spark takes to start.

    `master`: `local[*]` and its kin are tuned for a small run on this machine, `sc://host` connects to a
    Spark Connect server, anything else is a cluster's master and keeps the cluster's own settings. `config` holds
    settings of Spark that go before these, but over Spark Connect. `long_run`: minutes of work are ahead, so that the
    JVM's thorough compiler pays.
    The session is a context manager that stops Spark on the way out.

    Raises:
        SparkUnavailableError: Java, or what Spark Connect needs, is missing.
    """
    builder = SparkSession.builder
    if master.startswith("sc://"):
        try:
            session = builder.remote(master).getOrCreate()
        except ImportError as missing:
            raise SparkUnavailableError(
                f"{master}: Spark Connect cannot run ({missing}). Run: pip install 'pyspark[connect]'"
            ) from missing
    else:
        require_java()
        if master.startswith("local"):
            # Or Spark looks for an address of this machine's name, and warns where that is a loopback one.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            # Or the workers are some Python that is first on the PATH, without the packages of this one.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master).appName(app_name)
        for key, value in (_settings(master, long_run) | dict(config or {})).items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def _settings(master: str, long_run: bool) -> dict[str, str]:
    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if not master.startswith("local"):
        return quiet | {"spark.log.level": "ERROR"}
    # Most of a short run is Spark warming up: the fast compiler alone is done before the thorough one pays.
    # With logging of our own, Spark does not announce the defaults that it falls back to.
    options = [
        "-XX:+UseParallelGC",
        "-XX:ReservedCodeCacheSize=256m",
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    ]
    if not long_run:
        options.append("-XX:TieredStopAtLevel=1")
    return quiet | {
        # A machine's own name may lead to an address that no packet reaches, for example behind a VPN.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": " ".join(options),
        # Plans that adapt while they run cost more than they gain where nothing is far away, and so does generating the
        # code of the same query again.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.cache.maxEntries": "3000",
        # Each of the default 200 partitions would be a task of its own, with nearly nothing to do.
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    }
