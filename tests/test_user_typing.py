"""A user's script passes `mypy --strict`, against the wheel and against an editable install, without our settings.

The scripts are the examples of the documents, as a user copies them, those in examples/, and those in tests/typing/:
what may be written, and mistakes that mypy has to find. Pyright finds the same mistakes, and nothing else.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .documents import PAGES, examples_of, module_for
from .installs import PACKAGES, ROOT, TIMEOUT_S, build_wheel, copy_tree, install_editable, pip

pytestmark = pytest.mark.long

ACCEPTED, REJECTED = (ROOT / "tests" / "typing" / f"{name}.py" for name in ("accepted", "rejected"))
PROGRAMS = [
    REJECTED,
    ACCEPTED,
    *(ROOT / "examples" / name for name in ("orders.py", "redis_consumer.py", "scheduler.py", "service.py")),
]
MISTAKES = {
    (REJECTED.name, number)
    for number, line in enumerate(REJECTED.read_text(encoding="utf-8").splitlines(), 1)
    if line.endswith("# error")
}
SESSION = "from pyspark.sql import SparkSession\n\nspark: SparkSession\n"
"""The session that examples for Spark are given."""


FUNCTIONS = (
    SESSION
    + """
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from pyspark.sql import Row

from pipeline.spark import ordered_wait, unordered_wait
from pipeline.streaming import AsyncFunction
from pipeline.streaming import ordered_wait as wait_for_each


@dataclass
class Price:
    price: float


class One(AsyncFunction[Row, Price]):
    async def open(self) -> None: ...

    async def async_invoke(self, value: Row) -> Price:
        return Price(value.id)

    def timeout(self, value: Row) -> Price:
        return Price(0)


class Many(AsyncFunction[Row, Price]):
    def close(self) -> None: ...

    async def async_invoke(self, value: Row) -> list[Price]:
        return [Price(value.id)] * 2

    def timeout(self, value: Row) -> list[Price]:
        return []


class Either(AsyncFunction[int, str]):
    async def async_invoke(self, value: int) -> str | list[str]:
        return str(value) if value else []


class Batches(AsyncFunction[Row, Price]):
    async def async_invoke_batch(self, values: list[Row]) -> list[list[Price] | Exception]:
        return [[Price(value.id)] for value in values]


class Yields(AsyncFunction[Row, Price]):
    async def async_invoke(self, value: Row) -> AsyncIterator[Price]:
        yield Price(value.id)

    def timeout(self, value: Row) -> Iterator[Price]:
        yield Price(0)


def blocking(row: Row) -> float | None:
    return None


df = spark.range(1)
ordered_wait(df, One(), timeout=10, extra="ignore")
ordered_wait(df, Yields(), timeout=10)
unordered_wait(df, Many(), Price, timeout=10, keep_input=True)
unordered_wait(df, Batches(), "price double", timeout=10, max_batch_size=10, linger_ms=5)
ordered_wait(df, blocking, timeout=10, pool_size=4, on_error="capture")
answers: Iterator[str] = wait_for_each([1, 2], Either(), timeout=1)

class Mistaken(AsyncFunction[Row, Price]):
    async def async_invoke(self, value: Row) -> str:  # type: ignore[override]
        return ""


ordered_wait(df, One(), timeout="10")  # type: ignore[arg-type]
ordered_wait(df, One(), timeout=10, capacities=5)  # type: ignore[call-arg]
ordered_wait(df, One(), timeout=10, extra="drop")  # type: ignore[arg-type]
"""
)
"""What may be written, and what a type checker refuses: `--strict` reports an ignored error that there is not."""


LOOSELY_TYPED = ("tutorials", "how-to", "coming-from")
"""Folders whose pages are written as their readers would, with packages that have no stubs."""


def scripts_in(folder: Path) -> list[Path]:
    """Write each page's examples as scripts: one for the plain ones, one for those on Spark, one for each other."""
    folder.mkdir()
    for page in PAGES:
        if page.parent.name in LOOSELY_TYPED:
            continue
        name = module_for(page).__name__
        texts = {name: "\n\n".join(examples_of(page, "python"))}
        if on_spark := examples_of(page, "python spark"):
            texts[f"{name}_spark"] = "\n\n".join([SESSION, *on_spark])
        for script, text in texts.items():
            if text:
                (folder / f"{script}.py").write_text(text, encoding="utf-8")
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, folder / f"example_{example.name}")
    for program in (ACCEPTED, REJECTED):
        shutil.copy(program, folder)
    (folder / "functions.py").write_text(FUNCTIONS, encoding="utf-8")
    return sorted(folder.glob("*.py"))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of an environment with all of this one's packages but ours."""
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=TIMEOUT_S)
    (site_packages,) = home.glob("lib/python*/site-packages")
    # Paths in a .pth are not searched for further .pth, such as that of our own editable install.
    (site_packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return home / "bin/python"


def mypy(python: Path, scripts: list[Path]) -> list[str]:
    """What `mypy --strict` of this environment says about scripts that run with `python`: its lines without notes."""
    # What mypy knows of other packages stays for the next run.
    cache = ROOT / ".mypy_cache" / "users"
    options = ["--strict", "--no-pretty", "--config-file=", f"--python-executable={python}", f"--cache-dir={cache}"]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *(script.name for script in scripts)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=scripts[0].parent,
    )
    return [line for line in (checked.stdout + checked.stderr).splitlines() if ": note: " not in line]


def install_wheel(tree: Path, python: Path) -> None:
    wheel = build_wheel(tree, tree.parent / "built")
    (site_packages,) = python.parent.parent.glob("lib/python*/site-packages")
    pip("install", "--no-deps", "--target", site_packages, wheel)


@pytest.mark.slow
@pytest.mark.parametrize("install", [install_wheel, pytest.param(install_editable, marks=pytest.mark.minutes)])
def test_every_example_passes_mypy_strict(install: Callable[[Path, Path], None], python: Path, tmp_path: Path) -> None:
    copy_tree(tmp_path / "tree")
    install(tmp_path / "tree", python)
    scripts = scripts_in(tmp_path / "scripts")
    assert {"page_readme", "page_docs_async_io_spark"} <= {script.stem for script in scripts}

    *errors, last = mypy(python, scripts)

    assert last == f"Found {len(errors)} errors in 1 file (checked {len(scripts)} source files)"
    places = [re.match(r"(.+?):(\d+): error: ", line) for line in errors]
    assert {(place[1], int(place[2])) for place in places if place} == MISTAKES


def test_a_configuration_tells_its_defaults_to_a_type_checker() -> None:
    """Without pydantic's plugin, mypy knows a default only by the name `default`, and not as the first argument."""
    calls = [
        (path, node.lineno)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "Field(" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Field" and node.args
    ]

    assert calls == []


# -- pyright -----------------------------------------------------------------------------------------------------------


def pyright(*options: str) -> Any:
    """The checker's output, which is JSON."""
    paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "VIRTUAL_ENV": sys.prefix}
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", *options],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **paths},
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_pyright_reports_each_mistake_and_nothing_else(tmp_path: Path) -> None:
    settings = {"include": [*map(str, PROGRAMS)], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")

    found = pyright("--level=error", f"--pythonpath={sys.executable}", f"--project={tmp_path}")

    places = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found["generalDiagnostics"]}
    assert found["summary"]["filesAnalyzed"] == len(PROGRAMS)
    assert places == MISTAKES


@pytest.mark.slow
def test_the_types_of_the_packages_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attribute without an annotation is ambiguous. One package that holds ours is one run of the checker."""
    (tmp_path / "ours").mkdir()
    for name in ("__init__.py", "py.typed"):
        (tmp_path / "ours" / name).touch()
    for package in PACKAGES:
        (tmp_path / "ours" / package).symlink_to(ROOT / package)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")

    names = pyright("--verifytypes", "ours", "--ignoreexternal")["typeCompleteness"]["symbols"]

    for package in PACKAGES:
        known = [each["isTypeKnown"] for each in names if each["name"].startswith(f"ours.{package}.")]
        assert len(known) > 2000, package
        assert known.count(True) >= 0.99 * len(known), package
