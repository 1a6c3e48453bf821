"""What holds for the packages as a whole."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from enum import Enum
from importlib.metadata import metadata
from pathlib import Path

import pytest

from .documents import PUBLIC, ROOT

pytestmark = pytest.mark.long

TOP_PACKAGES = ("dispatcher", "statemachines", "pipeline")
PACKAGES = [
    ".".join(init.parent.relative_to(ROOT).parts)
    for package in TOP_PACKAGES
    for init in sorted((ROOT / package).rglob("__init__.py"))
]
EXTRAS = {
    "pyspark",
    "pyarrow",
    "pandas",
    "starlette",
    "uvicorn",
    "h11",
    "typer",
    "rich",
    "jinja2",
    "textual",
    "cronsim",
}
HEAVY = {"pydantic", "yaml", "asyncio", "prometheus_client", "json", "logging.config", "tempfile", "importlib.metadata"}


def printed_by(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


REPORTS = {"jinja2", "pipeline.spark.report.report", "statemachines", "pipeline.streaming"}
INSPECTED = {"starlette", "uvicorn", "dispatcher.view", "dispatcher.async_dispatcher", "dispatcher.journal.history"}


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("dispatcher", EXTRAS),
        ("dispatcher.testing", EXTRAS),
        ("dispatcher.web", EXTRAS),
        ("statemachines.resourcemanager", EXTRAS),
        ("pipeline", {"pyspark"}),
        # A function of asynchronous calls whose results are models has imported pydantic.
        ("pipeline.streaming", {"pyspark", "pydantic"}),
        ("pipeline.spark.async_io.async_wait", {"pydantic"}),
        ("pipeline.cli", {"pyspark"}),
        # A Python worker that reads a journal.
        ("pipeline.spark.source.journal_source", REPORTS),
        ("dispatcher.ops.door, dispatcher.web.server", {"prometheus_client", "http.server", "jinja2", "typer"}),
        # A command that starts must not wait for the import of what it inspects from outside.
        ("dispatcher.cli.ops.client, dispatcher.cli.ops.look", INSPECTED),
    ],
)
def test_an_import_imports_no_more_than_it_needs(modules: str, absent: set[str]) -> None:
    if "web.server" in modules:
        pytest.importorskip("starlette", reason="the extra web is not installed")

    assert absent & set(printed_by(f"import sys, {modules}; print(*sys.modules)").split()) == set()


FIRST_POST = """
import sys
from enum import Enum
from dispatcher import AsyncDispatcher, Event
print(*sys.modules)
class Work(Enum):
    DONE = 1
dispatcher = AsyncDispatcher()
print(*sys.modules)
dispatcher.register(Work, lambda event: None)
with dispatcher:
    dispatcher.post(Event(Work.DONE))
print(*sys.modules)
"""
"""Prints the modules that are loaded after the import, after the constructor, and at the end."""


def test_a_dispatcher_imports_what_it_uses_and_no_more() -> None:
    """Its import took longer than that of pydantic four times over."""
    imported, made, ended = (set(line.split()) for line in printed_by(FIRST_POST).splitlines())

    assert imported & HEAVY == set()
    assert made & (HEAVY - {"pydantic"}) == set()
    assert ended == made
    assert len({name for name in imported if name.startswith("dispatcher.")}) <= 77


@pytest.mark.parametrize("package", ["statemachines", "pipeline"])
def test_a_module_that_hides_the_dispatcher_is_named(tmp_path: Path, package: str) -> None:
    (tmp_path / "dispatcher.py").write_text("mine = 1\n")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import {package}"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {package} needs the package dispatcher of central-dispatcher, but Python finds another "
        f"dispatcher at {tmp_path / 'dispatcher.py'}: rename or remove that one, or take it off PYTHONPATH"
    )


def imported_by(node: ast.ImportFrom) -> set[str]:
    """The names that a statement imports; for `*`, the public ones that its module defines."""
    if node.names[0].name != "*":
        return {alias.asname or alias.name for alias in node.names}
    defined = vars(importlib.import_module(str(node.module)))
    return {name for name, value in defined.items() if getattr(value, "__module__", None) == node.module}


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_what_a_package_re_exports(name: str) -> None:
    module = importlib.import_module(name)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imported = {
        name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in TOP_PACKAGES
        for name in imported_by(node)
    }
    promised = set(getattr(module, "__all__", []))

    assert promised >= {public for public in imported if not (public.islower() or public.startswith("_"))}
    assert all(hasattr(module, public) for public in promised)


def test_the_extras_are_those_that_users_need() -> None:
    described = metadata("central-dispatcher")

    assert set(described.get_all("Provides-Extra") or []) == {"cli", "connect", "cron", "postgres", "spark", "web"}


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_are_those_that_are_kept_in_the_list(package: str) -> None:
    exported = set(importlib.import_module(package).__all__)

    new, gone = sorted(exported - set(PUBLIC[package])), sorted(set(PUBLIC[package]) - exported)
    assert (new, gone) == ([], []), "change tests/public_names.toml, and tell of it in CHANGELOG.md"


def test_the_top_level_has_the_names_that_embedders_use_and_no_more() -> None:
    assert len(PUBLIC["dispatcher"]) <= 53


@pytest.mark.parametrize("name", ["MailboxExecutor", "RejectedExecutionError"])
def test_a_name_that_moved_to_the_mailbox_is_found_at_its_old_place_with_a_warning(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"import {name} from dispatcher.mailbox"):
        old = getattr(importlib.import_module("dispatcher"), name)

    assert old is getattr(importlib.import_module("dispatcher.mailbox"), name)


KINDS = """
import importlib, inspect, pkgutil, sys

def kinds(packages):
    for package in packages:
        module = importlib.import_module(package)
        for name in module.__all__:
            found = {}
            exec(f"from {package} import {name}", found)
            value = found[name]
            kind = "module" if inspect.ismodule(value) else "class" if isinstance(value, type) else (
                "function" if inspect.isroutine(value) else "data")
            yield f"{package}.{name} {kind}"

def import_all(package):
    for each in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.", lambda name: None):
        if each.name.rpartition(".")[2] != "__main__":
            try:
                importlib.import_module(each.name)
            except ImportError:
                pass  # of an extra

first = list(kinds(sys.argv[1:]))
for package in ("dispatcher", "statemachines", "pipeline"):
    import_all(package)
print(*first, "-", *kinds(sys.argv[1:]), sep="\\n")
"""
"""Prints the kind of each public name, once before and once after the import of all modules."""


def test_public_names_are_of_the_kind_that_their_spelling_says_whatever_is_imported() -> None:
    """`from pipeline.spark import call_metrics` gave the module of that name, and not the function in it."""
    printed = printed_by(KINDS, *PUBLIC).splitlines()

    before, after = printed[: printed.index("-")], printed[printed.index("-") + 1 :]
    odd = {line for line in before if line.split()[1] != spelled(line.split()[0].rpartition(".")[2])}
    assert (odd, after) == ({"dispatcher.health data"}, before)  # the checks of this process


def spelled(name: str) -> str:
    return "function" if name.islower() else "data" if name.isupper() else "class"


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_class_function_and_method_has_a_docstring(package: str) -> None:
    module = importlib.import_module(package)
    public = {f"{package}.{name}": getattr(module, name) for name in PUBLIC[package]}
    classes = {name: value for name, value in public.items() if inspect.isclass(value)}
    members = {
        f"{name}.{attribute}": getattr(value, attribute)
        for name, value in classes.items()
        if not issubclass(value, (Enum, BaseException))
        for attribute, found in vars(value).items()
        if not attribute.startswith("_")
        and (isinstance(found, property) or inspect.isroutine(getattr(value, attribute)))
    }
    functions = {name: value for name, value in public.items() if inspect.isroutine(value)}

    bare = [name for name, value in classes.items() if not value.__dict__.get("__doc__") or _is_made(value)]
    bare += [name for name, value in (functions | members).items() if not inspect.getdoc(value)]
    assert bare == []


def _is_made(value: type) -> bool:
    """Whether the docstring is the one that NamedTuple or a dataclass makes."""
    return str(value.__doc__).startswith(f"{value.__name__}(")
