"""Sends the three packages with a job, so that executors need not have them installed.

They are packed into a zip in a temporary folder, once per process, and added to the session as an artifact: on a
cluster Spark copies it to each executor, and over Spark Connect first to the server. What is pickled with a query
refers to the packages by name, so `ship_packages` has to come before the query. A local master needs none of it: its
workers run the driver's own Python.

The zip holds sources and bytecode, because a Python does not keep the bytecode that it makes of a source in a zip.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from py_compile import PycInvalidationMode, compile
from typing import Any, Final
from weakref import WeakSet

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from pipeline.spark.errors import PACKAGE_ADVICE, ExecutorError

PACKAGES: Final = ("dispatcher", "statemachines", "pipeline")
_LEFT_OUT: Final = ("__pycache__", "examples")
_ENTRY_DATE: Final = (1980, 1, 1, 0, 0, 0)
"""Of every entry: the same files make the same zip, which Spark does not copy again."""

EXECUTOR_PACKAGES: Final = ("pyarrow", "pandas", "numpy", "duckdb", "pydantic", "yaml", "prometheus_client")
"""What the shipped packages import, and has compiled code, which does not run from a zip."""

_OTHER_PACKAGE_ADVICE: Final = "Install it there, or send it with spark.addArtifacts(PATH, pyfile=True)."

_lock = threading.Lock()
_archive: Path | None = None  # guarded by _lock; made by the first session that needs it
_shipped: WeakSet[SparkSession] = WeakSet()  # guarded by _lock


def runs_on_executors(spark: SparkSession) -> bool:
    """Whether the session's tasks may run with another Python than this process: on a cluster, or over Spark Connect.

    A server of Spark Connect may be on another machine even if its master is local.
    """
    if is_remote(spark):
        return True
    master = spark.conf.get("spark.master") or ""
    return not (master == "local" or master.startswith("local["))


def is_remote(spark: SparkSession) -> bool:
    """Whether the session is a Spark Connect session, whose server may not share this machine's folders."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def ship_packages(spark: SparkSession) -> None:
    """Send the packages with the session's jobs from now on. Any thread; repeating it does nothing.

    Raises:
        ExecutorError: Spark does not take them.
    """
    with _lock:
        if spark in _shipped or not runs_on_executors(spark):
            return
        path = _packed()
        try:
            spark.addArtifacts(str(path), pyfile=True)
        except Exception as error:
            raise ExecutorError(
                f"the packages {', '.join(PACKAGES)} cannot be sent to the executors ({headline(error)}). "
                "Install central-dispatcher there, with the same version as here."
            ) from error
        finally:
            # Spark also puts its copy before this process' own packages, and deletes it with the session.
            sys.path[:] = [entry for entry in sys.path if not entry.endswith(path.name)]
        _shipped.add(spark)


def on_executors(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """`function` for `mapInArrow`, so that a worker that lacks a package says so in one line and names itself.

    What a query pickles imports its modules while it is unpickled, before any function of this project could catch an
    error. The returned function needs none of them.
    """
    pickled = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    ours, advice, other_advice = EXECUTOR_PACKAGES, PACKAGE_ADVICE, _OTHER_PACKAGE_ADVICE

    def run(*args: Any) -> Iterator[Any]:
        import pickle

        try:
            unpickled = pickle.loads(pickled)
        except ModuleNotFoundError as missing:
            import platform
            import sys

            sys.tracebacklimit = 0  # of a worker, which ends with this error
            package = (missing.name or str(missing)).partition(".")[0]
            raise RuntimeError(
                f"an executor on {platform.node()} runs {sys.executable} (Python {platform.python_version()}), "
                f"which lacks the package {package}. {advice if package in ours else other_advice}"
            ) from None
        yield from unpickled(*args)

    return run


def _packed() -> Path:
    """The path of the zip; it is removed when this process ends. Under _lock."""
    global _archive
    if _archive is None or not _archive.exists():
        folder = Path(tempfile.mkdtemp(prefix="central-dispatcher-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        draft = folder / "packages.zip"
        pack(draft)
        digest = hashlib.sha256(draft.read_bytes()).hexdigest()[:16]
        _archive = draft.rename(folder / f"central_dispatcher_{digest}.zip")
    return _archive


def pack(path: Path) -> None:
    """Write the zip of the packages, as they are imported here, to `path`."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, tempfile.TemporaryDirectory() as scratch:
        for package in PACKAGES:
            for name, file in sorted(_files(resources.files(package), package)):
                content = file.read_bytes()
                archive.writestr(zipfile.ZipInfo(name, _ENTRY_DATE), content, zipfile.ZIP_DEFLATED)
                if name.endswith(".py"):
                    bytecode = _bytecode(name, content, Path(scratch))
                    archive.writestr(zipfile.ZipInfo(f"{name}c", _ENTRY_DATE), bytecode, zipfile.ZIP_DEFLATED)


def _files(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.name in _LEFT_OUT:
            continue
        if entry.is_dir():
            yield from _files(entry, f"{name}/{entry.name}")
        elif not entry.name.endswith(".pyc"):
            yield f"{name}/{entry.name}", entry


def _bytecode(name: str, source: bytes, scratch: Path) -> bytes:
    # Unchecked: a checked one names the time or the hash of a source that an import from a zip does not look at.
    # A Python of another version passes over it and compiles the source.
    script, compiled = scratch / "module.py", scratch / "module.pyc"
    script.write_bytes(source)
    compile(str(script), str(compiled), name, doraise=True, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    return compiled.read_bytes()


def headline(error: Exception) -> str:
    """The first line of what the error says."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
