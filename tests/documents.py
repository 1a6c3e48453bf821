"""The documents as the tests see them: their examples, and the parts that list what the code declares.

These are metrics, configuration keys, columns of the journal, tables of the report, commands, fields of the REST API.
`python -m tests.documents` writes them again, between their markers; test_conventions.py checks that they agree.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin
from urllib.request import urlopen

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

ROOT = Path(__file__).parents[1]
REGENERATE = "run `python -m tests.documents` and commit what it writes"
_KINDS: dict[Any, str] = {
    type(None): "null",
    bool: "true, false",
    int: "integer",
    float: "number",
    str: "text",
    Path: "path",
    dict: "mapping",
    list: "list",
    tuple: "list",
}
_PART = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n)(?P<body>.*?)(<!-- end -->\n)", re.DOTALL)


# -- examples ----------------------------------------------------------------------------------------------------------

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """Its path, by which tests name it: several folders have an index."""
    return str(page.relative_to(ROOT).with_suffix(""))


def pages_with(language: str) -> list[Path]:
    """The pages with fenced blocks of a language."""
    return [page for page in PAGES if examples_of(page, language)]


def module_for(page: Path) -> ModuleType:
    """A module for a page's examples, under a name that they do not import."""
    name = f"page_{re.sub(r'[^a-z0-9]', '_', name_of(page).lower())}"
    module = ModuleType(name)
    # Python 3.15 warns without a loader, where it looks for a line of source.
    module.__spec__ = ModuleSpec(name, SourceFileLoader(name, str(page)))
    return module


def run_examples(page: Path, language: str, module: ModuleType) -> None:
    """Run a page's blocks of a language, one after the other, with the names of `module`."""
    for example in examples_of(page, language):
        exec(compile(example, str(page), "exec"), module.__dict__)


def examples_of(page: Path, language: str) -> list[str]:
    """The fenced blocks that are marked with exactly this: `python`, `python spark`, `python notest`."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def program_lines(program: Path) -> int:
    """The lines of a program that hold code: not those that are blank or have only a comment or a docstring."""
    text = program.read_text(encoding="utf-8")
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = [line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in docstrings]
    return sum(line != "" and not line.startswith("#") for line in lines)


PUBLIC: dict[str, list[str]] = {
    package: table["names"]
    for package, table in tomllib.loads((ROOT / "tests/public_names.toml").read_text("utf-8")).items()
}
"""The public names of each package."""


# -- metrics -----------------------------------------------------------------------------------------------------------


def metric_families() -> dict[str, list[Any]]:
    """What each of the packages' `register_..._metrics` functions shows to a scrape, by the name of the function."""
    from prometheus_client import CollectorRegistry

    from pipeline.lookup import LookupMetrics, register_lookup_metrics
    from pipeline.streaming import CallMetrics, register_call_metrics
    from statemachines.resourcemanager import ResourceManager
    from statemachines.resourcemanager.web import RMDoor

    manager, calls, lookups = ResourceManager(), CallMetrics(), LookupMetrics()
    RMDoor(manager)
    of_calls, of_lookups = CollectorRegistry(), CollectorRegistry()
    register_call_metrics(calls, "operator", of_calls)
    register_lookup_metrics(lookups, "table", of_lookups)
    return {
        "register_metrics": list(manager.registry.collect()),
        "register_call_metrics": list(of_calls.collect()),
        "register_lookup_metrics": list(of_lookups.collect()),
    }


def shown_families() -> list[Any]:
    """All families of metrics on the page, with those that the page adds to every registry."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.parser import text_string_to_metric_families

    from dispatcher import MetricsConfig, MetricsServer

    with MetricsServer(MetricsConfig(), CollectorRegistry()) as server, urlopen(server.url_of("/metrics")) as page:
        added = list(text_string_to_metric_families(page.read().decode()))
    return [family for families in [*metric_families().values(), added] for family in families]


def metric_names() -> set[str]:
    """The names as a scrape has them."""
    return {_scraped_name(family) for family in shown_families()}


def metric_table(function: str, prefix: str = "") -> str:
    families = [family for family in metric_families()[function] if family.name.startswith(prefix)]
    rows = [
        (f"`{_scraped_name(family)}`", family.type, _code_list(_own_labels(family)), family.documentation)
        for family in families
    ]
    return _table(("metric", "type", "labels", "meaning"), rows)


def _scraped_name(family: Any) -> str:
    return f"{family.name}_total" if family.type == "counter" else str(family.name)


def _own_labels(family: Any) -> list[str]:
    """Without those that all families of the same registration have."""
    return [label for label in family._labelnames if label not in ("dispatcher", "operator", "table")]


# -- configuration -----------------------------------------------------------------------------------------------------


def config_fields() -> dict[str, FieldInfo]:
    """Every key of the resource manager's configuration by its path; `[]` and `{}` stand for any member."""
    from statemachines.resourcemanager import ResourceManagerConfig

    return dict(_fields_of(ResourceManagerConfig, "", ()))


def web_config_tables() -> str:
    """The keys of a door, as those of a daemon that has them below `web`."""
    from dispatcher.web import WebConfig

    return config_tables({f"web.{path}": field for path, field in _fields_of(WebConfig, "", ())})


def config_tables(fields: Mapping[str, FieldInfo] | None = None) -> str:
    """A table for each section, in the order of the model; without `fields`, of the resource manager's."""
    fields = fields if fields is not None else config_fields()
    sections = dict.fromkeys(path.rpartition(".")[0] for path in fields)
    parts = []
    for section in sections:
        rows = [
            (f"`{path}`", _allowed(field), _default(field), field.description or "")
            for path, field in fields.items()
            if path.rpartition(".")[0] == section and path not in sections
        ]
        if rows:
            title = f"## `{section}`" if section else "## At the top"
            about = fields[section].description if section in fields else None
            table = _table(("key", "value", "default", "meaning"), rows)
            parts.append("\n\n".join(filter(None, (title, about, table))))
    return "\n".join(parts)


def _fields_of(model: type[BaseModel], prefix: str, above: tuple[type[BaseModel], ...]) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        yield prefix + name, field
        for suffix, nested in _models_of(field.annotation):
            if nested not in (*above, model):  # a queue has queues
                yield from _fields_of(nested, f"{prefix}{name}{suffix}.", (*above, model))


def _models_of(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield "", annotation
        return
    suffix = {tuple: "[]", list: "[]", dict: "{}"}.get(get_origin(annotation), "")
    for argument in get_args(annotation):
        for inner, model in _models_of(argument):
            yield suffix + inner, model


def _allowed(field: FieldInfo) -> str:
    annotation = field.annotation
    is_union = get_origin(annotation) not in (None, Literal, *_KINDS)
    return ", ".join(map(_kind, get_args(annotation) if is_union else (annotation,)))


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    return _KINDS.get(get_origin(annotation) or annotation, "list")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, tuple):
        value = [each.name if hasattr(each, "name") else each for each in value]
    return f"`{yaml.safe_dump([value], default_flow_style=True, width=1000).strip()[1:-1]}`"


# -- commands ----------------------------------------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    """Every command without subcommands, by its words: `dispatcher journal verify`."""
    import typer

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    app = typer.Typer()
    for name, value in sorted(declared["project"]["entry-points"]["dispatcher.commands"].items()):
        command = EntryPoint(name, value, "dispatcher.commands").load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    app.callback()(lambda: None)
    return dict(_leaves(typer.main.get_command(app), "dispatcher"))


def command_reference() -> str:
    return "\n".join(_described(words, command) for words, command in sorted(commands().items()))


def _leaves(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield words, command
        return
    for name in subcommands:
        yield from _leaves(command.get_command(None, name), f"{words} {name}")


def _described(words: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    required = [f"{each.opts[0]} {each.metavar or each.name.upper()}" for each in options if each.required]
    others = ["[OPTIONS]"] if len(options) > len(required) else []
    usage = " ".join([words, *map(_argument, arguments), *required, *others])
    rows = [(f"`{_argument(each)}`", "", _one_line(each.help)) for each in arguments]
    rows += [
        (_code_list([*each.opts, *each.secondary_opts]), _option_default(each), _one_line(each.help))
        for each in options
    ]
    table = _table(("argument", "default", "meaning"), rows) if rows else ""
    return f"## {words}\n\n`{usage}`\n\n{_one_line(command.help)}\n" + (f"\n{table}" if table else "")


def _argument(parameter: Any) -> str:
    name = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _option_default(option: Any) -> str:
    if option.required:
        return "required"
    value = getattr(option.default, "value", option.default)
    return "" if value in (None, False, True) else f"`{value}`"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


# -- the journal -------------------------------------------------------------------------------------------------------


def column_table(name: str) -> str:
    from dispatcher.journal import TABLES

    [columns] = [table.columns for table in TABLES if table.name == name]
    rows = [
        (f"`{each.name}`", f"{each.type}, nullable" if each.nullable else each.type, each.meaning) for each in columns
    ]
    return _table(("column", "type", "meaning"), rows)


# -- tables of the report ----------------------------------------------------------------------------------------------


def report_table() -> str:
    rows = [(f"`{table.name}`", table.row, table.says) for table in _report_tables()]
    return _table(("table", "one row per", "contents"), rows)


def report_columns() -> str:
    rows = [(f"`{table.name}`", "; ".join(map(_report_column, table.columns))) for table in _report_tables()]
    return _table(("table", "columns"), rows)


def _report_tables() -> list[Any]:
    from pipeline.report.tables.registry import COMPARISON, TABLES

    return [*TABLES, COMPARISON]


def _report_column(column: Any) -> str:
    unit = f" ({column.unit})" if column.unit else ""
    return f"`{column.name}` {column.type}{unit}{', nullable' if column.nullable else ''}"


# -- the REST API ------------------------------------------------------------------------------------------------------


def rest_fields() -> str:
    """Which of Hadoop's fields a resource manager's answers have; a cluster of its own is asked for that."""
    from .statemachines.resourcemanager.web.hadoop_fields import DOCUMENTED, found, there

    objects, rows = found(), []
    for each in DOCUMENTED:
        present = there(each, objects[each.name])
        missing = [name for name in each.fields if name not in present]
        rows.append((each.name, f"`{each.request}`", _code_list(present), _code_list(missing)))
    return _table(("object", "request", "supported fields", "missing fields"), rows)


# -- writing -----------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], str]] = {
    "dispatcher-metrics": lambda: metric_table("register_metrics", "dispatcher_"),
    "statemachine-metrics": lambda: metric_table("register_metrics", "statemachine_"),
    "resourcemanager-metrics": lambda: metric_table("register_metrics", "resourcemanager_"),
    "call-metrics": lambda: metric_table("register_call_metrics"),
    "lookup-metrics": lambda: metric_table("register_lookup_metrics"),
    "configuration": config_tables,
    "web-configuration": web_config_tables,
    "commands": command_reference,
    "events-columns": lambda: column_table("events"),
    "transitions-columns": lambda: column_table("transitions"),
    "report-tables": report_table,
    "report-columns": report_columns,
    "rest-fields": rest_fields,
}


def with_parts_anew(text: str) -> str:
    """A document with its generated parts as the code has them now."""

    def made(found: re.Match[str]) -> str:
        return f"{found[1]}\n{PARTS[found['name']]()}\n{found[4]}"

    return _PART.sub(made, text)


def parts_in(text: str) -> list[str]:
    return [found["name"] for found in _PART.finditer(text)]


def _code_list(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    for document in sorted((ROOT / "docs").glob("*.md")):
        before = document.read_text(encoding="utf-8")
        after = with_parts_anew(before)
        if after != before:
            document.write_text(after, encoding="utf-8")
            print(f"{document.relative_to(ROOT)}: written")
