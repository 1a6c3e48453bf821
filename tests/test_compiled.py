"""The compiled build: what is loaded, what it says of itself, and when it refuses to be made."""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import tomllib
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from pathlib import Path
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, Event
from dispatcher.compiled import loaded
from statemachines import InvalidStateTransitionError, StateMachineFactory

from .compiled import IS_COMPILED
from .public_names import DATA, NO_SIGNATURE

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MODULES: list[str] = PYPROJECT["tool"]["central-dispatcher"]["compiled"]["modules"]


def backend(call: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call a hook of the build backend, as pip does, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", f"import wheel_backend; print(wheel_backend.{call})"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "scripts" / "wheel"), **environment},
    )


@pytest.mark.skipif("TESTS_COMPILED" not in os.environ, reason="only a run that is to be compiled has to be")
@pytest.mark.parametrize("module", MODULES)
def test_a_compiled_run_loads_the_compiled_module(module: str) -> None:
    assert Path(str(importlib.import_module(module).__file__)).suffix == ".so"


def test_the_modules_to_compile_exist_and_are_named_once() -> None:
    assert sorted(set(MODULES)) == MODULES
    assert [module for module in MODULES if not (ROOT / f"{module.replace('.', '/')}.py").is_file()] == []


def test_the_build_says_what_is_loaded() -> None:
    assert loaded.describe_build() == ("compiled" if IS_COMPILED else "pure Python")


@pytest.mark.parametrize(
    ("installed", "found", "says"),
    [
        (set(), set(), "pure Python"),
        ({"a", "b"}, {"a", "b"}, "compiled"),
        ({"a", "b"}, {"a"}, "compiled in part: 1 of 2 modules, without b"),
        ({"a", "b"}, set(), "pure Python, although 2 compiled modules are installed: other sources come before them"),
        (
            set(),
            {"a"},
            "compiled in part: 1 modules, and no installation has put a there; delete them if the sources beside them "
            "have changed",
        ),
    ],
)
def test_a_part_that_is_not_compiled_is_told(
    monkeypatch: pytest.MonkeyPatch, installed: set[str], found: set[str], says: str
) -> None:
    monkeypatch.setattr(loaded, "_installed", lambda: installed)
    monkeypatch.setattr(loaded, "_loaded", lambda: found)

    assert loaded.describe_build() == says


class Work(Enum):
    AGAIN = "AGAIN"


def test_a_handler_without_python_code_that_posts_for_ever_lets_the_dispatcher_be_stopped() -> None:
    dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=10))
    event = Event(Work.AGAIN)
    dispatcher.register(Work, partial(dispatcher.event_handler.handle, event))
    dispatcher.set_drain_events_on_stop(False)
    with dispatcher:
        dispatcher.event_handler.handle(event)

    assert dispatcher.wait_for_service_to_stop(60)


class Lamp(Enum):
    ON = "ON"
    OFF = "OFF"


@pytest.mark.parametrize(
    "make",
    [
        lambda: StateMachineFactory(Lamp.ON),
        lambda: StateMachineFactory(Lamp.ON).make(object()),
        lambda: InvalidStateTransitionError(Lamp.ON, Work.AGAIN),
    ],
)
@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_weak_references_end_with_their_object(make: Callable[[], object], in_a_cycle: bool) -> None:
    """mypyc's objects freed the weak references to them, which others still held: the interpreter crashed."""
    kept: list[Any] = []
    for _ in range(100):
        made: Any = make()
        try:
            kept.append(weakref.ref(made))
        except TypeError:  # its class takes none, which is as good
            pytest.skip("takes no weak references")
        if in_a_cycle:
            made = [made]
            made.append(made)
        del made
        gc.collect(0)

    gc.collect()
    assert [reference() for reference in kept] == [None] * 100


@pytest.mark.skipif(not IS_COMPILED, reason="no class is compiled")
@pytest.mark.parametrize("module", MODULES)
def test_compiled_classes_have_no_interpreted_bases_with_attributes(module: str) -> None:
    """On Python 3.11, mypyc neither frees such attributes nor shows them to the collector."""
    found = vars(importlib.import_module(module)).values()
    kinds = [kind for kind in found if isinstance(kind, type) and "__mypyc_attrs__" in vars(kind)]
    bases = {base for kind in kinds for base in kind.__mro__ if "__mypyc_attrs__" not in vars(base)}
    assert [base for base in bases if base.__dictoffset__ and not issubclass(base, BaseException)] == []


@pytest.mark.skipif(not IS_COMPILED, reason="there is one build only")
def test_the_compiled_build_shows_what_the_sources_show() -> None:
    """Class constants without `ClassVar` were descriptors of instances: `TaskMailbox.MIN_PRIORITY` was no number."""
    with ThreadPoolExecutor() as pool:
        sources, compiled = pool.map(public_names, ("sources", "compiled"))

    differences = {
        name: (sources.get(name, "absent"), compiled.get(name, "absent"))
        for name in sources.keys() | compiled.keys()
        if sources.get(name) != compiled.get(name)
        # A compiled class shows the attributes of its instances, which the sources only assign.
        and (name in sources or compiled[name] != DATA)
        and NO_SIGNATURE not in compiled.get(name, "")
    }
    assert differences == {}
    assert sources["dispatcher.mailbox.task_mailbox.TaskMailbox.MIN_PRIORITY"] == "constant -1"


def public_names(build: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "public_names.py", build],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(IS_COMPILED, reason="compiled classes have descriptors of their own")
@pytest.mark.parametrize("module", MODULES)
def test_constants_of_classes_to_compile_are_class_variables(module: str) -> None:
    """Without `ClassVar`, mypyc takes a constant for an attribute of instances, and the class has no value for it."""
    undeclared = [
        f"{kind.__name__}.{name}"
        for kind in vars(importlib.import_module(module)).values()
        if isinstance(kind, type) and kind.__module__ == module and not issubclass(kind, (Enum, tuple))
        for name, value in vars(kind).items()
        if not name.startswith("_") and not isinstance(value, DESCRIPTORS)
        if not any(str(base.__annotations__.get(name)).startswith("ClassVar") for base in annotated(kind))
    ]

    assert undeclared == []


DESCRIPTORS = (FunctionType, property, classmethod, staticmethod, GetSetDescriptorType, MemberDescriptorType)


def annotated(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if "__annotations__" in vars(base)]


def test_c_code_clears_weak_references_and_owns_its_attributes() -> None:
    place = "(*((PyObject **)((char *)self + sizeof(PyObject *) + sizeof(a___B))));"
    attribute = "(*((PyObject **)((char *)self + sizeof(a___B))));"

    done = backend(f"with_weak_references('Py_VISIT{attribute}Py_VISIT{place}Py_CLEAR{attribute}Py_CLEAR{place}')")

    clears = "if (Py_REFCNT(self) == 0) PyObject_ClearWeakRefs((PyObject *)self);"
    assert done.stdout == f"Py_VISIT{attribute}Py_CLEAR{attribute}{clears}\n"


def test_c_code_whose_weak_references_are_not_found_is_not_compiled() -> None:
    done = backend("with_weak_references('.tp_weaklistoffset = 1,')")

    assert done.returncode == 1
    assert "this release of mypy" in done.stderr.splitlines()[-1]


# -- building ----------------------------------------------------------------------------------------------------------


def test_a_pure_build_needs_no_compiler() -> None:
    done = backend("is_compiled()", DISPATCHER_COMPILE="", CC="no-such-compiler")

    assert (done.returncode, done.stdout) == (0, "False\n")


def test_a_compiled_build_without_a_compiler_says_so_in_one_line_and_leaves_no_file(tmp_path: Path) -> None:
    done = backend("get_requires_for_build_wheel()", tmp_path, DISPATCHER_COMPILE="1", CC="no-such-compiler -O2")

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "DISPATCHER_COMPILE=1 needs the C compiler no-such-compiler, which was not found (Debian: apt-get install gcc "
        "libc6-dev, or set CC). Without DISPATCHER_COMPILE the wheel is pure Python and needs neither."
    )
    assert list(tmp_path.iterdir()) == []


def test_an_editable_install_is_never_compiled() -> None:
    done = backend("get_requires_for_build_editable()", DISPATCHER_COMPILE="1")

    assert done.returncode == 1
    assert "an editable install is pure Python" in done.stderr.splitlines()[-1]


def test_another_value_of_the_variable_is_refused() -> None:
    done = backend("is_compiled()", DISPATCHER_COMPILE="yes")

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "DISPATCHER_COMPILE=yes: expected 1, or 0 for pure Python, which is the default"
    )
