"""What a user installs: a wheel built from the tree, without tests, scripts and Java."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from .installs import PACKAGES, TIMEOUT_S, build_wheel, copy_tree, pip
from .kit.commands import COMMAND, ROOT, run_here

pytestmark = pytest.mark.long

CONFIG = ROOT / "config"
EXAMPLES = sorted(path.stem for path in CONFIG.glob("*.yaml"))
GRAFANA = sorted(f"grafana/{path.name}" for path in (CONFIG / "grafana").glob("*.json"))
ALL_EXAMPLES = sorted([*EXAMPLES, *GRAFANA, "systemd/dispatcher.service"])
DATA = (".html", ".js", ".css", ".properties")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    copy_tree(tree)
    return build_wheel(tree, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--target", target, wheel)
    return target


def run_installed(installed: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the command of the wheel, with this Python's other packages and no Java."""
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PYTHONPATH": str(installed), "PATH": ""}
    return subprocess.run(
        [*COMMAND, *args],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment,
        cwd=installed,
    )


def test_the_wheel_holds_the_packages_and_the_examples_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name) for name in archive.namelist()]
        examples = {name: archive.read(f"dispatcher/examples/{name}.yaml") for name in EXAMPLES}

    tops = {name.parts[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert sorted(name.stem for name in names if name.parent == Path("dispatcher/examples")) == EXAMPLES
    assert examples == {name: (CONFIG / f"{name}.yaml").read_bytes() for name in EXAMPLES}
    assert {Path(package, "py.typed") for package in PACKAGES} <= set(names)
    sources = {path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    data = {
        path.relative_to(ROOT) for package in PACKAGES for kind in DATA for path in (ROOT / package).rglob(f"*{kind}")
    }
    assert {path.suffix for path in data} == set(DATA)
    assert {name for name in names if name.suffix == ".py"} == sources
    assert {name for name in names if name.suffix in DATA} == data


def test_the_installed_command_has_the_examples_and_the_version_of_its_wheel(installed: Path, wheel: Path) -> None:
    shown = run_installed(installed, "config", "show", "replay")

    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == (CONFIG / "replay.yaml").read_text(encoding="utf-8")
    assert run_installed(installed, "config", "list").stdout.split() == ALL_EXAMPLES
    assert run_installed(installed, "--version").stdout == f"dispatcher {wheel.name.split('-')[1]}\n"


# -- the working tree, installed as editable ---------------------------------------------------------------------------


def test_an_example_is_shown_by_the_name_of_its_file_as_well() -> None:
    assert run_here("config", "show", "replay.yaml").out == (CONFIG / "replay.yaml").read_text(encoding="utf-8")


def test_an_unknown_example_is_answered_with_those_there_are() -> None:
    done = run_here("config", "show", "nothing")

    assert (done.code, done.out) == (2, "")
    assert done.err == f"dispatcher: no example configuration 'nothing'; expected one of {', '.join(ALL_EXAMPLES)}\n"


def test_the_version_is_the_distributions() -> None:
    assert run_here("--version").out == f"dispatcher {version('central-dispatcher')}\n"


def test_without_its_extra_the_command_says_so_in_one_line() -> None:
    code = "import sys; sys.modules['typer'] = None; from dispatcher.cli import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dispatcher: the command needs its extra: pip install 'central-dispatcher[cli]'\n"
