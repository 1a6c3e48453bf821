"""The conventions of the source, and of the documents that list what the code declares.

An exception needs a reason, and goes when it is no longer needed: a check that finds nothing there fails.
"""

from __future__ import annotations

import ast
import gc
import re
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from . import conventions, documents
from .conventions import Layers, Module, Violations

ROOT = Path(__file__).parents[1]
PACKAGES = ("dispatcher", "statemachines", "pipeline")

LAYERS: Layers = (
    {
        "the core's foundations": (
            "dispatcher.config",
            "dispatcher.errors",
            "dispatcher.event",
            "dispatcher.service",
            "dispatcher.util",
        )
    },
    {"the mailbox": ("dispatcher.mailbox",), "the event journal": ("dispatcher.journal",)},
    {"the event queue": ("dispatcher.queue",)},
    {"the dispatcher": ("dispatcher",)},
    {"the web host": ("dispatcher.web",)},
    {"the ops API and the pages": ("dispatcher.ops", "dispatcher.pages")},
    {
        "the core's commands": (
            "dispatcher.__main__",
            "dispatcher.cli",
        ),
        "helpers for tests": ("dispatcher.testing",),
    },
    {"state machines": ("statemachines",)},
    {"records of the resource manager": ("statemachines.resourcemanager.records",)},
    {"the resource manager's events": ("statemachines.resourcemanager.events",)},
    {"the resource manager's machines": ("statemachines.resourcemanager.machines",)},
    {
        "the scheduler": ("statemachines.resourcemanager.scheduler",),
        "the state store": ("statemachines.resourcemanager.statestore",),
    },
    {"what the parts of the resource manager share": ("statemachines.resourcemanager.context",)},
    {"the resource manager's reports": ("statemachines.resourcemanager.reports",)},
    {"the resource manager's services": ("statemachines.resourcemanager.services",)},
    {
        "the resource manager": ("statemachines.resourcemanager",),
        "MapReduce": ("statemachines.mapreduce",),
        "the node manager": ("statemachines.nodemanager",),
        "releases of Hadoop": ("statemachines.releases",),
    },
    {
        "the simulation": ("statemachines.simulation",),
        "all machines by name": ("statemachines.registry", "statemachines.conformance", "statemachines.time_travel"),
    },
    {"the resource manager's read model": ("statemachines.resourcemanager.read",)},
    {"the resource manager's web address": ("statemachines.resourcemanager.web",)},
    {
        "the commands of the state machines": (
            "statemachines.admin_cli",
            "statemachines.cli",
            "statemachines.journal_cli",
        )
    },
    {
        "elements of streams": (
            "pipeline.streaming.elements",
            "pipeline.streaming.errors",
            "pipeline.streaming.keys",
            "pipeline.streaming.number_checks",
            "pipeline.streaming.single_flight",
        ),
        "helpers of the pipeline": ("pipeline.postgres", "pipeline.sql"),
    },
    {
        "calls": tuple(
            f"pipeline.streaming.{name}"
            for name in (
                "calls",
                "cache",
                "function_forms",
                "function_wrappers",
                "gathering",
                "options",
                "return_types",
            )
        )
    },
    {"stream tasks": ("pipeline.streaming.task",)},
    {"streaming": ("pipeline.streaming",)},
    {
        "lookups": ("pipeline.lookup",),
        "the journal as Arrow": ("pipeline.journal",),
        "logs of YARN": ("pipeline.yarnlog",),
        "sweeps": ("pipeline.sweep",),
    },
    {"the report's tables and page": ("pipeline.report",)},
    {"a sweep's page, made of the parts of the report's": ("pipeline.sweep.page",)},
    {
        "Spark's sessions, errors and metrics": tuple(
            f"pipeline.spark.{name}"
            for name in (
                "java",
                "session",
                "errors",
                "failures",
                "observed_calls",
                "result_caches",
                "shipping",
                "executors",
            )
        )
    },
    {"the insides of PySpark": ("pipeline.spark.worker",)},
    {"Spark's sources": ("pipeline.spark.source",), "Async I/O on Spark": ("pipeline.spark.async_io",)},
    {"the report on Spark": ("pipeline.spark.report",), "sweeps on Spark": ("pipeline.spark.sweep",)},
    {"Spark": ("pipeline.spark",)},
    {"the commands of the pipeline": ("pipeline.cli", "pipeline")},
)

SHARED_CLASSES: Sequence[str] = ()
"""Classes for several threads that neither make a primitive of `threading` nor say so in their docstring."""

EXCEPTIONS: Mapping[str, Mapping[str, str]] = tomllib.loads((ROOT / "tests/conventions.toml").read_text("utf-8"))
"""By check: the key of each violation that stays, and why."""


DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(f"docs/{page.name}" for page in ROOT.glob("docs/*.md")),
)
PUBLIC = tomllib.loads((ROOT / "tests/public_names.toml").read_text("utf-8")).keys()
"""The packages that publish names."""
MOST_INNER_IMPORTS = 262
"""Of tests. It falls: what a test reaches for inside, the next change of that inside has to write anew."""
FOLDERS = (*PACKAGES, "config", "docs", "examples", "scripts", "tests", ".ci")


def source() -> list[Module]:
    return conventions.read_modules(ROOT, PACKAGES)


def concurrent() -> list[Module]:
    """What runs on a Python without a global interpreter lock."""
    return [
        module
        for module in modules(source)
        if module.name.startswith(("dispatcher.", "statemachines.", "pipeline.streaming."))
    ]


def suite() -> list[Module]:
    return conventions.read_modules(ROOT, ["tests"])


CHECKS: Mapping[str, tuple[Callable[[], list[Module]], Callable[..., Violations]]] = {
    "imports run downward": (source, partial(conventions.imports_upward, layers=LAYERS)),
    "no imports in a circle": (source, conventions.import_circles),
    "only pipeline.spark imports pyspark": (
        source,
        partial(conventions.foreign_imports, library="pyspark", home="pipeline.spark"),
    ),
    "doors leave the state of handlers alone": (
        source,
        partial(conventions.handler_state_reaches, homes=("dispatcher.web", "dispatcher.ops", "dispatcher.pages")),
    ),
    "the resource manager's web address leaves its state alone": (
        source,
        partial(
            conventions.resource_manager_reaches,
            homes=("statemachines.resourcemanager.web", "statemachines.resourcemanager.read"),
            publishers=tuple(
                f"statemachines.resourcemanager.read.{each}"
                for each in ("marks", "operations", "published", "publisher")
            ),
        ),
    ),
    "shared fields have owners": (source, partial(conventions.unowned_fields, shared=SHARED_CLASSES)),
    "containers without a lock have a reason": (concurrent, conventions.unlocked_containers),
    "nothing is atomic by the interpreter lock": (concurrent, conventions.arguments_from_the_interpreter_lock),
    "private stays private": (source, conventions.private_reaches),
    "modules, functions and folders are small": (source, conventions.too_big),
    "intervals of the core are monotonic": (source, partial(conventions.wall_clock_reads, home="dispatcher")),
    "tests do not sleep": (suite, conventions.sleeps),
    "commands print escaped names": (source, conventions.raw_prints),
    "errors are DispatcherErrors": (source, conventions.plain_errors),
}

NAMED_FILES = "documents name files that exist"

_read: dict[Callable[[], list[Module]], list[Module]] = {}


def modules(read: Callable[[], list[Module]]) -> list[Module]:
    """Read once for all checks: parsing takes longer than checking."""
    if read not in _read:
        _read[read] = read()
    return _read[read]


@pytest.fixture(scope="module", autouse=True)
def _syntax_trees() -> Iterator[None]:
    """Millions of objects, none of which is garbage: to look for some takes longer than the checks."""
    gc.disable()
    yield
    _read.clear()
    gc.enable()


def complaints(violations: Violations, exceptions: Mapping[str, str]) -> list[str]:
    """What a check has to say once its exceptions are taken into account."""
    unneeded = [
        f"{key}: this exception is no longer needed; remove it" for key in exceptions.keys() - violations.keys()
    ]
    return sorted([text for key, text in violations.items() if key not in exceptions] + unneeded)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.filterwarnings("always::UserWarning")
def test_the_source_keeps_the_conventions(check: str) -> None:
    read, find = CHECKS[check]
    if find is conventions.too_big:
        hints = find(modules(read), conventions.HINT).values()
        warnings.warn("\n".join(["large, look whether it is one subject:", *hints]), stacklevel=1)

    found = complaints(find(modules(read)), EXCEPTIONS.get(check, {}))

    assert not found, "\n".join(["", *found])


def test_tests_come_through_public_doors() -> None:
    found = conventions.inner_imports(modules(suite), PACKAGES, PUBLIC)

    assert len(found) <= MOST_INNER_IMPORTS, "\n".join(["import what a package publishes:", *sorted(found)])


def test_documents_name_files_that_exist() -> None:
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}

    found = complaints(conventions.missing_files(texts, ROOT, FOLDERS), EXCEPTIONS.get(NAMED_FILES, {}))

    assert not found, "\n".join(["", *found])


def test_every_exception_is_of_a_check_and_has_a_reason() -> None:
    assert EXCEPTIONS.keys() <= {*CHECKS, NAMED_FILES}
    assert all(reason for exceptions in EXCEPTIONS.values() for reason in exceptions.values())


# -- the checks find what they are for ---------------------------------------------------------------------------------


def sample(**texts: str) -> list[Module]:
    """Modules by name, with dots written as two underscores."""
    return [Module(name.replace("__", "."), text) for name, text in texts.items()]


def test_what_the_web_address_reaches_for_is_found() -> None:
    modules = sample(
        web__bad="from statemachines.resourcemanager.machines.rmapp import RMApp\nimport statemachines.recorder",
        web__worse="def f(manager):\n    manager.context\n    self._manager.recorder\n    self.rm_context.call",
        web__good="from statemachines.resourcemanager.reports import NodeReport\nmodel.apps\nmanager.clients",
        web__publisher="manager.context.apps",
    )

    found = conventions.resource_manager_reaches(modules, homes=("web",), publishers=("web.publisher",))

    assert set(found) == {
        "web.bad -> statemachines.resourcemanager.machines.rmapp.RMApp",
        "web.bad -> statemachines.recorder",
        "web.worse: manager.context",
        "web.worse: manager.recorder",
        "web.worse: self.rm_context",
    }


def test_an_import_upward_is_found_wherever_it_stands() -> None:
    layers: Layers = ({"low": ("low",)}, {"high": ("high",), "beside": ("beside",)})
    found = conventions.imports_upward(
        sample(
            low__plain="import high",
            low__name="from high import name",
            low__type="if TYPE_CHECKING:\n    from high import name",
            low__lazy="def f():\n    from high import name",
            low__by_name="def f():\n    import_module('high')",
            low__inside="import low.plain",
            high="import low.plain\nimport beside",
            beside="",
        ),
        layers,
    )

    assert set(found) == {
        "low.plain -> high",
        "low.name -> high",
        "low.type -> high",
        "low.lazy -> high",
        "low.by_name -> high",
        "high -> beside",
    }


def test_a_module_in_no_room_is_found() -> None:
    assert set(conventions.imports_upward(sample(nowhere=""), ())) == {"nowhere"}


def test_a_circle_is_found_also_if_one_import_is_for_types_only_or_lazy() -> None:
    found = conventions.import_circles(
        sample(
            p__a="from p import b",
            p__b="if TYPE_CHECKING:\n    from p.c import name",
            p__c="import p.a",
            q__a="import q.b",
            q__b="def f():\n    import q.a",
        )
    )

    assert set(found) == {"p.a <-> p.b <-> p.c", "q.a <-> q.b"}


def test_a_foreign_import_is_found() -> None:
    texts = sample(
        home__a="import spark.sql", other="if TYPE_CHECKING:\n    from spark.sql import Row", third="import sparkle"
    )

    assert set(conventions.foreign_imports(texts, "spark", "home")) == {"other -> spark"}


def test_an_inner_import_is_found() -> None:
    inner = "import home.inner\nfrom home import x\nfrom .home.part import y\nfrom . import home"
    texts = sample(tests__a=inner, tests__b="import homely.inner")

    assert conventions.inner_imports(texts, ["home"], {"home"}) == ["tests.a:1 -> home.inner"]


def test_a_door_s_reach_for_a_handler_s_state_is_found() -> None:
    found = conventions.handler_state_reaches(
        sample(
            door__imports="from dispatcher.dispatching.batches import Batch\nimport dispatcher.stats",
            door__lazy="def f():\n    from statemachines.resourcemanager import ResourceManager",
            door__context="def f(rm):\n    return rm.context.scheduler",
            door__own="class A:\n    def f(self):\n        return self._context.clock",
            door__apps="def f(rm):\n    return list(rm.apps.values())",
            door__sound="from dispatcher.stats import DispatcherStats\nssl.create_default_context().options",
            handler="def f(rm):\n    return rm.context.apps",
        ),
        ["door"],
    )

    assert set(found) == {
        "door.imports -> dispatcher.dispatching.batches",
        "door.imports -> dispatcher.dispatching.batches.Batch",
        "door.lazy -> statemachines.resourcemanager",
        "door.lazy -> statemachines.resourcemanager.ResourceManager",
        "door.context: context.scheduler",
        "door.own: _context.clock",
        "door.apps: rm.apps",
    }


SHARED = '''
class Box:
    def __init__(self, name):
        self._lock = threading.Lock()
        self.name = name
        self._plain = 0
        self._items = []
        self._marked = 0  # guarded by _lock
        # handler thread only
        self._marked_above = 0
        self._marked_below = 0
        """Written by the handler thread."""

    def put(self, item):
        self._plain += 1
        self._marked += 1
        self._marked_above += 1
        self._marked_below += 1
'''


def test_a_shared_field_without_an_owner_is_found() -> None:
    found = conventions.unowned_fields(sample(m=SHARED))

    assert set(found) == {"m.Box._plain", "m.Box._items"}


@pytest.mark.parametrize("shared", [(), ("m.Box",)])
def test_a_class_is_shared_by_its_docstring_or_by_the_list(shared: Sequence[str]) -> None:
    docstring = "" if shared else '"""A box. Any thread may put."""'
    text = f"class Box:\n    {docstring}\n    def __init__(self):\n        self._items = []\n"

    assert set(conventions.unowned_fields(sample(m=text), shared)) == {"m.Box._items"}
    assert conventions.unowned_fields(sample(m="class Box:\n    def __init__(self):\n        self.items = []")) == {}


def test_a_reach_for_a_private_name_is_found() -> None:
    found = conventions.private_reaches(
        sample(
            m="class Own:\n    def __init__(self, other):\n        self._mine = other._theirs\n"
            "        other._mine, other._replace, other._name_, os._exit, super()._base"
        )
    )

    assert set(found) == {"m: other._theirs"}


def test_what_is_too_big_is_found() -> None:
    most = conventions.Sizes(module_lines=9, function_lines=5, modules_in_folder=2)
    long_function = "def f():\n" + "    pass\n" * most.function_lines
    long_module = "x = 1\n" * (most.module_lines + 1)
    full_folder = {f"full__m{number}": "" for number in range(most.modules_in_folder + 1)}

    found = conventions.too_big(sample(a=long_function, b=long_module, **full_folder), most)

    assert set(found) == {"a:f", "b", "full/"}


def test_a_sleep_is_found_and_a_yield_to_other_threads_is_not() -> None:
    found = conventions.sleeps(
        sample(
            m="def naps():\n    time.sleep(0.1)\n"
            "def naps_inside():\n    async def f():\n        await asyncio.sleep(delay)\n"
            "def yields():\n    time.sleep(0)\n    await asyncio.sleep(0)\n"
        )
    )

    assert set(found) == {"m:naps", "m:naps_inside"}


def test_a_plain_error_is_found() -> None:
    found = conventions.plain_errors(
        sample(
            call="raise ValueError('x')",
            name="def f():\n    raise TypeError",
            other="raise builtins.RuntimeError('x') from error",
            sound="try:\n    raise OddValueError('x')\nexcept ValueError:\n    raise",
        )
    )

    assert set(found) == {"call", "name", "other"}


def test_a_look_at_the_wall_clock_is_found_however_it_is_named() -> None:
    found = conventions.wall_clock_reads(
        sample(
            core__call="import time\ndef f():\n    return time.time()",
            core__default="import time\nclass A:\n    def f(self, clock=time.time_ns): ...",
            core__alias="import time as clock\nNOW = clock.time",
            core__name="from time import time as now\nasync def f():\n    return now()",
            core__lazy="def f():\n    import datetime\n    return datetime.datetime.now()",
            core__of_class="from datetime import UTC, datetime\ndef f():\n    return datetime.now(UTC)",
            core__sound="import time\nfrom time import perf_counter_ns\n"
            "def f(time_ns, row):\n    return time_ns() + time.monotonic() + row.time.time()",
            beside="import time\ntime.time()",
        ),
        "core",
    )

    assert set(found) == {
        "core.call:f",
        "core.default:A.f",
        "core.alias:",
        "core.name:f",
        "core.lazy:f",
        "core.of_class:f",
    }


def test_a_path_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/here.py").touch()
    text = "`src/here.py`, `src/gone.py`, `src/`, `other/gone.py`, `src/here.py --flag`"

    assert set(conventions.missing_files({"page": text}, tmp_path, ["src"])) == {"page: src/gone.py"}


def test_an_exception_that_is_no_longer_needed_is_a_complaint() -> None:
    assert complaints({"a": "a is wrong", "b": "b is wrong"}, {"a": "reason", "c": "reason"}) == [
        "b is wrong",
        "c: this exception is no longer needed; remove it",
    ]


# -- documents ---------------------------------------------------------------------------------------------------------


def document(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["metrics.md", "configuration.md", "commands.md", "journal.md", "web.md", "rest.md"])
def test_a_document_lists_what_the_code_declares(name: str) -> None:
    if name == "commands.md":
        pytest.importorskip("typer", reason="typer is not installed: pip install 'central-dispatcher[cli]'")
        pytest.importorskip("pyarrow", reason="the commands of the extra spark are on the page")
    if name == "rest.md":
        pytest.importorskip("uvicorn", reason="the extra web is not installed")
        pytest.importorskip("httpx", reason="httpx is not installed")
    text = document(name)

    assert documents.with_parts_anew(text) == text, f"docs/{name} is not up to date: {documents.REGENERATE}"


def test_every_generated_part_is_in_a_document() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in documents.PAGES)

    assert sorted(documents.parts_in(pages)) == sorted(documents.PARTS)


def test_every_function_that_registers_metrics_is_among_those_that_are_documented() -> None:
    functions = {
        node.name
        for module in modules(source)
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef) and re.fullmatch(r"register_\w*metrics", node.name)
    }

    assert functions == documents.metric_families().keys(), "add it to metric_families in tests/documents.py"


def test_documents_name_no_metric_that_does_not_exist() -> None:
    known = documents.metric_names()
    pages = {documents.name_of(page): page.read_text(encoding="utf-8") for page in documents.PAGES}

    unknown = {
        f"{name}: {metric}"
        for name, text in pages.items()
        for metric in re.findall(
            r"`((?:dispatcher|statemachine|async|lookup)_[a-z_]+_(?:total|seconds|size|failed))`", text
        )
        if metric not in known
    }
    assert unknown == set(), f"these metrics do not exist: {sorted(unknown)}"


def test_the_map_of_the_rooms_has_every_folder() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    on_map = set(re.findall(r"([a-z_.]+)/", text.partition("## The rooms")[2].partition("###")[0]))
    folders = {module.name.rpartition(".")[2] for module in modules(source) if module.is_package}

    assert folders <= on_map, f"docs/architecture.md: add to the map of the rooms: {sorted(folders - on_map)}"


def test_a_generated_part_that_was_changed_by_hand_is_seen() -> None:
    text = document("metrics.md")
    changed = text.replace("dispatcher_failed", "dispatcher_fails", 1)

    assert documents.with_parts_anew(changed) == text
