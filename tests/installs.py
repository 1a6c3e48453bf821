"""Builds and installs the project from a copy of its tree, because a build leaves files there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("dispatcher", "statemachines", "pipeline")
SETUPTOOLS = 77  # as [build-system] in pyproject.toml
TIMEOUT_S = 240.0
_HOME = os.environ.get("HOME", "")
"""Of the user, with pip's configuration and cache: read before the tests get a home of their own."""


def pip(*args: object) -> None:
    """Skip the test if a build needs setuptools and cannot have it."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "HOME": _HOME},
    )
    if "No matching distribution found for setuptools" in done.stderr:
        pytest.skip(f"setuptools {SETUPTOOLS} or newer is neither installed nor to be had here")
    assert done.returncode == 0, done.stderr


def copy_tree(tree: Path) -> None:
    """Copy what a build reads, and folders that it must leave out, into `tree`."""
    tree.mkdir(exist_ok=True)
    for name in (*PACKAGES, "config", "tests", "scripts"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tree)


def build_wheel(tree: Path, folder: Path) -> Path:
    pip("wheel", "--no-deps", *_isolation(), "--wheel-dir", folder, tree)
    (path,) = folder.glob("*.whl")
    return path


def install_editable(tree: Path, python: Path) -> None:
    pip("--python", python, "install", "--no-deps", *_isolation(), "--editable", tree)


def _isolation() -> list[str]:
    is_new = int(version("setuptools").partition(".")[0]) >= SETUPTOOLS
    return ["--no-build-isolation"] if is_new else []
