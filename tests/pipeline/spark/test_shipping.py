"""The zip of the packages, and what a function says that was sent to a worker that lacks a package."""

from __future__ import annotations

import pickle
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from pipeline.spark import shipping
from pipeline.spark.shipping import PACKAGES, on_executors, pack, runs_on_executors, ship_packages

THEIRS = Path(sysconfig.get_path("purelib"))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "packages.zip"
    pack(path)
    return path


def run_isolated(packed: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that has the zip and the libraries, and has not installed this project."""
    start = f"import sys; sys.path[1:1] = [{str(packed)!r}]; sys.path.append({str(THEIRS)!r})\n"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + code], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_zip_has_all_modules_and_their_bytecode(packed: Path) -> None:
    names = set(zipfile.ZipFile(packed).namelist())

    sources = {name for name in names if name.endswith(".py")}
    assert {name.partition("/")[0] for name in names} == set(PACKAGES)
    assert {name.removesuffix("c") for name in names if name.endswith(".pyc")} == sources
    assert "pipeline/spark/async_io/async_wait.py" in sources


def test_the_same_files_make_the_same_zip(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One package shows it: compiling all of them takes seconds."""
    monkeypatch.setattr(shipping, "PACKAGES", PACKAGES[:1])
    pack(tmp_path / "again.zip")

    again = entries(tmp_path / "again.zip")
    assert again == entries(packed)[: len(again)]


def entries(path: Path) -> list[tuple[str, tuple[int, ...], int]]:
    """What makes the bytes of a zip: names in their order, dates, and checksums of the contents."""
    with zipfile.ZipFile(path) as archive:
        return [(entry.filename, entry.date_time, entry.CRC) for entry in archive.infolist()]


def test_what_tasks_need_is_imported_from_the_zip_as_bytecode(packed: Path) -> None:
    modules = (
        "pipeline.spark.async_io.async_wait",
        "pipeline.spark.async_io.lookup_join",
        "pipeline.spark.source.journal_source",
        "pipeline.spark.report.digesting",
        "pipeline.sweep.outcome",
        "pipeline.yarnlog.rows",
    )

    done = run_isolated(packed, f"import {', '.join(modules)}\nfor m in [{', '.join(modules)}]: print(m.__file__)")

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(packed / (name.replace(".", "/") + ".pyc")) for name in modules]


def test_the_frames_of_zipped_packages_stay_out_of_a_rows_failure(packed: Path) -> None:
    done = run_isolated(
        packed,
        "from pipeline.spark.failures import row_failure\n"
        "from pipeline.streaming.errors import AsyncOperatorError\n"
        "from dispatcher.config import load_config\n"
        "def users(): load_config('/no/such/file', None)\n"
        "try: users()\n"
        "except Exception as error: print(row_failure('wait', AsyncOperatorError('wait', 1, error, 1)))",
    )

    frames = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("File ")]
    assert [frame.rpartition(" ")[2] for frame in frames[:2]] == ["<module>", "users"], done.stderr
    assert not [frame for frame in frames if "dispatcher/" in frame]


def test_a_function_for_executors_gives_the_batches_of_the_original() -> None:
    def doubled(numbers: Iterator[int]) -> Iterator[int]:
        return (2 * number for number in numbers)

    sent = pickle.loads(cloudpickle.dumps(on_executors(doubled)))  # type: ignore[no-untyped-call]

    assert list(sent(iter([1, 2]))) == [2, 4]


@pytest.mark.parametrize(
    ("package", "advice"), [("pydantic", "Run there: pip install"), ("theirs", "Install it there, or send it")]
)
def test_a_worker_that_lacks_a_package_says_so_in_one_line(
    packed: Path, package: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(numbers: Iterator[int]) -> Iterator[int]:
        return numbers

    class Foreign:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return __import__, (package,)

    use.foreign = Foreign()  # type: ignore[attr-defined]
    sent = cloudpickle.dumps(on_executors(use))  # type: ignore[no-untyped-call]

    done = run_isolated(
        packed, f"import pickle; sys.modules[{package!r}] = None; print(list(pickle.loads({sent!r})(iter([1]))))"
    )

    [line] = done.stderr.splitlines()
    assert line.startswith("RuntimeError: an executor on ")
    assert f"runs {sys.executable} (Python {sys.version.split()[0]}), which lacks the package {package}. " in line
    assert advice in line


def test_a_local_session_needs_no_packages(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be sent")

    monkeypatch.setattr(type(spark), "addArtifacts", refuse)

    ship_packages(spark)

    assert not runs_on_executors(spark)


def test_a_refused_artifact_says_what_to_do(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no room\nat line 1")

    monkeypatch.setattr(type(spark), "addArtifacts", refuse)
    monkeypatch.setattr(shipping, "runs_on_executors", lambda _: True)

    with pytest.raises(shipping.ExecutorError, match=r"cannot be sent to the executors \(no room\)\. Install"):
        ship_packages(spark)
