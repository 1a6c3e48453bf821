"""What holds on a Python without a GIL alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this Python has a GIL, or has it switched on"
)

IMPORT_ALL = """
import importlib, pkgutil, sys
missing = set()
for package in ("dispatcher", "statemachines", "pipeline.streaming"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:  # of an extra that has no wheels for this Python
            missing.add(error.name)
assert not {name for name in missing if name.partition(".")[0] in ("dispatcher", "statemachines", "pipeline")}, missing
print(sys._is_gil_enabled())
"""


def test_no_import_switches_the_gil_on() -> None:
    """An extension module that does not declare itself ready for it would, for the whole process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}

    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALL], env=environment, capture_output=True, text=True, timeout=300
    )

    assert (run.stdout.strip(), run.stderr) == ("False", "")
