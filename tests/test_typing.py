"""Type checkers find users' mistakes, and nothing wrong in what works: the programs in tests/typing and some in
examples/ are checked.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .installs import ROOT, TIMEOUT_S

pytestmark = pytest.mark.slow

REJECTED = ROOT / "tests" / "typing" / "rejected.py"
PROGRAMS = [
    REJECTED,
    ROOT / "tests" / "typing" / "accepted.py",
    *(ROOT / "examples" / name for name in ("orders.py", "redis_consumer.py", "scheduler.py", "service.py")),
]
Lines = set[tuple[str, int]]
"""Names of programs, and numbers of lines."""


def mypy(folder: Path) -> Lines:
    """The lines with an error."""
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--show-absolute-path", "--no-pretty"]
    printed = run("mypy", *options, f"--cache-dir={folder}", *map(str, PROGRAMS))
    return {(Path(file).name, int(line)) for file, line in re.findall(r"^(.+?):(\d+): error:", printed, re.MULTILINE)}


def pyright(folder: Path) -> Lines:
    """The lines with an error."""
    settings = {"include": [*map(str, PROGRAMS)], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    options = ["--outputjson", "--level=error", f"--pythonpath={sys.executable}", f"--project={folder}"]
    found = json.loads(run("basedpyright", *options))
    assert found["summary"]["filesAnalyzed"] == len(PROGRAMS)
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found["generalDiagnostics"]}


def run(checker: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", checker, *options],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "MYPYPATH": str(ROOT)},
    )
    assert done.returncode == 1, done.stdout + done.stderr  # it has found errors
    return done.stdout


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_checkers_report_each_mistake_and_nothing_else(checker: Callable[[Path], Lines], tmp_path: Path) -> None:
    lines = REJECTED.read_text(encoding="utf-8").splitlines()
    mistakes = {(REJECTED.name, number) for number, line in enumerate(lines, 1) if line.endswith("# error")}

    assert checker(tmp_path) == mistakes


@pytest.mark.parametrize("package", ["dispatcher", "statemachines", "pipeline"])
def test_the_types_of_a_package_are_complete(package: str) -> None:
    """It was 81 % of the names: an attribute without an annotation is ambiguous, and so is all that leads to it."""
    paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "VIRTUAL_ENV": sys.prefix}
    options = ["--verifytypes", package, "--ignoreexternal", "--outputjson"]

    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", *options],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **paths},
    )

    assert json.loads(done.stdout)["typeCompleteness"]["completenessScore"] >= 0.97
