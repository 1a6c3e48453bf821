"""Pyright finds users' mistakes, and nothing wrong in what works, in the programs of tests/typing and examples/.

What mypy finds is in `test_user_typing.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .installs import ROOT, TIMEOUT_S

pytestmark = pytest.mark.slow

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


def test_pyright_reports_each_mistake_and_nothing_else(tmp_path: Path) -> None:
    settings = {"include": [*map(str, PROGRAMS)], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")

    found = pyright("--level=error", f"--pythonpath={sys.executable}", f"--project={tmp_path}")

    places = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found["generalDiagnostics"]}
    assert found["summary"]["filesAnalyzed"] == len(PROGRAMS)
    assert places == MISTAKES


@pytest.mark.parametrize("package", ["dispatcher", "statemachines", "pipeline"])
def test_the_types_of_a_package_are_complete(package: str) -> None:
    """It was 81 % of the names: an attribute without an annotation is ambiguous, and so is all that leads to it."""
    found = pyright("--verifytypes", package, "--ignoreexternal")

    assert found["typeCompleteness"]["completenessScore"] >= 0.97
