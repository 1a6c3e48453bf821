"""Spark sessions for the command and the tests, and a clear error if Spark cannot run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dispatcher.util.functions import require_kind, require_methods
from pipeline.spark.java import SparkUnavailableError, require_java

try:
    from pyspark.sql import SparkSession
except ModuleNotFoundError as missing:
    raise SparkUnavailableError(
        f"Spark cannot run: the package {missing.name} is not installed. Run: pip install 'central-dispatcher[spark]'"
    ) from missing

_LOGGING = Path(__file__).with_name("log4j2.properties")


def spark_session(
    master: str = "local[*]",
    app_name: str = "dispatcher",
    config: Mapping[str, str] | None = None,
    *,
    long_run: bool = False,
) -> SparkSession:
    """Return the running session of this process, or start one, which blocks for some seconds.

    `master`: `local` masters are tuned for a small run on this machine, `sc://host` connects to a Spark Connect server,
        and any other master is a cluster's and keeps the cluster's settings.
    `config`: settings of Spark that override these. Ignored over Spark Connect.
    `long_run`: set this for minutes of work, which repay the JVM's optimizing compiler.

    You can use the session as a context manager, which stops Spark on exit.

    Raises:
        SparkUnavailableError: Java, or a package for Spark Connect, is missing.
    """
    require_kind(master, "master", str)
    require_methods(config if config is not None else {}, "config", "a mapping of settings", "keys")
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
            # Otherwise Spark resolves this machine's name, and warns if that is a loopback address.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            # Otherwise the workers run the first Python on the PATH, which may lack this one's packages.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master).appName(app_name)
        for key, value in (_settings(master, long_run) | dict(config or {})).items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def _settings(master: str, long_run: bool) -> dict[str, str]:
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if not master.startswith("local"):
        return quiet | {"spark.log.level": "ERROR"}
    # Most of a short run is warm-up, which ends before the optimizing compiler pays off.
    # With a logging configuration, Spark does not announce the default that it falls back to.
    options = [
        "-XX:+UseParallelGC",
        "-XX:ReservedCodeCacheSize=256m",
        f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    ]
    if not long_run:
        options.append("-XX:TieredStopAtLevel=1")
    return quiet | {
        # The machine's name may resolve to an unreachable address, for example behind a VPN.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": " ".join(options),
        # On one machine, adaptive plans cost more than they gain, and so does compiling the same query again.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.cache.maxEntries": "3000",
        # Each of the default 200 partitions would be a task with almost no work.
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    }
