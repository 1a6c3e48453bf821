"""What `dispatcher doctor` finds missing."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, entry_points
from pathlib import Path

import pytest

from pipeline.cli import doctor_command
from pipeline.cli.wheels import LACKING, PYTHONS, newest_python

from ...kit.commands import run_here

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"]


def run(*arguments: str) -> tuple[object, dict[str, tuple[str, str]]]:
    """The exit code; and by subject, whether it is there and the rest of the line."""
    done = run_here("doctor", *arguments)
    lines = [line.split(None, 2) for line in done.out.splitlines()]
    return done.code or 0, {subject: (state, text) for state, subject, text in lines}


def requirements(monkeypatch: pytest.MonkeyPatch, *texts: str, **installed: str) -> None:
    def version(name: str) -> str:
        try:
            return installed[name]
        except KeyError:
            raise PackageNotFoundError(name) from None

    of_others = {"pyspark": ['grpcio>=1.60; extra == "connect"', 'numpy>=1.2; extra == "sql"', "py4j==0.10"]}
    monkeypatch.setattr(doctor_command, "requires", lambda name: of_others.get(name, texts))
    monkeypatch.setattr(doctor_command, "version", version)


def test_eleven_lines_say_what_there_is() -> None:
    exit_code, lines = run("--port", "1")

    assert exit_code == 0
    assert " ".join(lines) == "python web cron spark connect postgres java ports descriptors memory clock"
    assert lines["python"][0] == "ok"


def test_a_package_that_is_missing_or_too_old_or_too_new_is_named_with_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor_command, "own_python", lambda: "3.13")
    requirements(
        monkeypatch,
        "pydantic>=2.7",
        'pyspark<5,>=4.0; extra == "spark"',
        'pandas<3,>=2.2; extra == "spark"',
        'pyarrow>=18; extra == "spark"',
        'duckdb>=2; extra == "spark"',
        'zstandard>=0.22; python_version < "3.1" and extra == "spark"',
        'pyspark[connect]<5,>=4.0; extra == "connect"',
        pyspark="4.0.0",
        pandas="3.0.1",
        pyarrow="17.9",
    )

    lines = run()[1]

    assert lines["spark"] == (
        "lacks",
        "pandas<3,>=2.2 (here: 3.0.1), pyarrow>=18 (here: 17.9), duckdb: pip install 'central-dispatcher[spark]' "
        "(for: replay, report, sweep, yarn-log, pipeline.spark)",
    )
    assert lines["connect"] == (
        "lacks",
        "grpcio: pip install 'central-dispatcher[connect]' (for: Spark Connect (--master sc://...))",
    )


@pytest.mark.parametrize(("grpcio", "state"), [("1.59.9", "lacks"), ("1.60.0rc1", "lacks"), ("1.80.0.post1", "ok")])
def test_the_extras_of_a_required_package_are_required_with_their_versions(
    monkeypatch: pytest.MonkeyPatch, grpcio: str, state: str
) -> None:
    """Connect without grpcio was ok."""
    requirements(monkeypatch, 'pyspark[connect]<5,>=4.0; extra == "connect"', pyspark="4.1.0", grpcio=grpcio)

    found, text = run()[1]["connect"]

    assert (found, f"grpcio>=1.60 (here: {grpcio})" in text) == (state, state == "lacks")


@pytest.mark.parametrize(
    ("python", "lacking"), [("3.15", "pandas"), ("3.15t", "duckdb, pandas"), ("3.13t", "duckdb, zstandard")]
)
def test_an_extra_that_has_no_wheels_for_this_python_names_them_and_a_python_that_has_them(
    monkeypatch: pytest.MonkeyPatch, python: str, lacking: str
) -> None:
    monkeypatch.setattr(doctor_command, "own_python", lambda: python)
    requirements(monkeypatch, 'pandas<3,>=2.2; extra == "spark"')

    assert run()[1]["spark"] == (
        "lacks",
        f"pandas: {lacking} had no wheel for Python {python} at this release: take Python 3.14, or try pip install "
        "'central-dispatcher[spark]' (for: replay, report, sweep, yarn-log, pipeline.spark)",
    )


def test_an_extra_that_was_installed_without_wheels_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_command, "own_python", lambda: "3.15")
    requirements(monkeypatch, 'pandas<3,>=2.2; extra == "spark"', pandas="2.3.3")

    assert run()[1]["spark"][0] == "ok"


def test_a_free_threaded_python_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_command, "own_python", lambda: "3.14t")

    assert run()[1]["python"][1].endswith(" free-threaded, extra cli")


def test_wheels_are_declared_for_the_extras_and_pythons_of_the_distribution() -> None:
    classifiers = [each.rpartition(" ")[2] for each in PROJECT["classifiers"]]

    assert set(LACKING) == set(PROJECT["optional-dependencies"])
    assert list(PYTHONS) == [each for each in classifiers if re.fullmatch(r"3\.\d+", each)]
    assert {python.rstrip("t") for pythons in LACKING.values() for python in pythons} <= set(PYTHONS)
    assert {extra: newest_python(extra) for extra in LACKING if newest_python(extra) != PYTHONS[-1]} == {
        "spark": "3.14",
        "connect": "3.14",
    }


@pytest.mark.parametrize("extra", ["cli", "spark"])
def test_a_package_without_wheels_is_one_that_the_extra_requires(extra: str) -> None:
    """Those of `connect` and `postgres` are required by PySpark and psycopg."""
    required = {re.split(r"[^\w-]", text)[0] for text in PROJECT["optional-dependencies"][extra]}

    assert {package for packages in LACKING[extra].values() for package in packages} <= required


def test_a_command_is_checked_for_what_it_needs_and_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")

    exit_code, lines = run("report")

    assert (exit_code, list(lines)) == (1, ["python", "spark", "java", "memory"])
    assert "JAVA_HOME is /nowhere" in lines["java"][1]
    assert run("config")[0] == 0


def test_the_command_works_without_the_packages_that_it_finds_missing() -> None:
    """It could not be loaded without pyarrow, which another command of its package imports."""
    gone = ("pyspark", "pyarrow", "pandas", "duckdb", "jinja2", "starlette", "uvicorn", "psycopg")
    code = f"import sys; sys.modules.update(dict.fromkeys({gone})); from dispatcher.cli import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", code, "doctor", "config"], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok    python ")


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        taken = run("--port", str(port))[1]["ports"]

    assert taken[0] == "lacks"
    assert str(port) in taken[1]


def test_few_descriptors_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (1024, 4096))
    assert run("--port", "1")[1]["descriptors"] == ("ok", "1,024 for a process, 4,096 at most")

    monkeypatch.setattr("resource.getrlimit", lambda which: (256, 4096))

    assert run("--port", "1")[1]["descriptors"] == (
        "lacks",
        "256 at most for a process, and 1,024 are advisable: ulimit -n 1024 "
        "(for: daemons with many connections, reports of many segments)",
    )


def test_the_least_limit_of_the_cgroups_above_counts(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "own").write_text("1:name=systemd:/\n0::/a/b\n")
    (tmp_path / "a" / "memory.max").write_text("1073741824\n")
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    (tmp_path / "a" / "b" / "cpu.max").write_text("150000 100000\n")

    found = [doctor_command._limits(name, tmp_path, tmp_path / "own") for name in ("memory.max", "cpu.max")]

    assert found == [[1 << 30], [1.5]]


def test_an_unknown_command_is_a_mistake() -> None:
    done = run_here("doctor", "fly")

    assert done.code == 2
    assert "expected one of changes, config" in done.err


def test_every_command_is_known_to_the_doctor() -> None:
    declared = {point.name for point in entry_points(group="dispatcher.commands")}

    assert set(doctor_command.COMMANDS) == declared - {"doctor"}
