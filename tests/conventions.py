"""What holds for all source files, checked on their syntax trees: imports, owners of fields, sizes, sleeps, prints.

Each check takes modules and returns what breaks it, by a key that an exception can name. Nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path


@dataclass(frozen=True)
class Sizes:
    """The largest that passes."""

    module_lines: int
    function_lines: int
    modules_in_folder: int


HINT = Sizes(400, 60, 15)
"""Beyond it, a warning: look whether the module has two subjects. One subject stays whole."""
BOUND = Sizes(600, 100, 20)
"""Beyond it, conventions.toml gives a reason."""

Violations = dict[str, str]
"""What is wrong and what to do about it, by the key under which exceptions list it."""


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def imports(self) -> list[Import]:
        return list(_imports_of(self))


@dataclass(frozen=True)
class Import:
    """One import: of a module, or of some names of it."""

    target: str
    names: tuple[str, ...]
    line: int


def read_modules(root: Path, packages: Iterable[str]) -> list[Module]:
    modules = []
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            modules.append(Module(name, path.read_text(encoding="utf-8"), is_package))
    return modules


# -- imports -----------------------------------------------------------------------------------------------------------


Layers = Sequence[Mapping[str, Sequence[str]]]
"""The bottom first: of each layer its rooms by name, and of each room the packages and modules in it. The longest name
that fits decides. Rooms of one layer do not know each other."""


def imports_upward(modules: Sequence[Module], layers: Layers) -> Violations:
    """Imports that lead neither into a layer below nor into the same room."""
    found = {}
    room_of = {name: room for rooms in layers for room, names in rooms.items() for name in names}
    rank = {room: number for number, rooms in enumerate(layers) for room in rooms}
    known = {module.name for module in modules}
    for module in modules:
        room = _room(module.name, room_of)
        if room is None:
            found[module.name] = f"{module.name}: is in no room; add it to LAYERS in test_conventions.py"
            continue
        for target, line in _edges(module, known):
            other = _room(target, room_of)
            if other is not None and other != room and rank[other] >= rank[room]:
                found[f"{module.name} -> {target}"] = (
                    f"{module.name}:{line}: imports {target}, but {room} must not know {other}, which is not below it; "
                    "move what both need down, or pass it in from above"
                )
    return found


def import_circles(modules: Sequence[Module]) -> Violations:
    """Modules that import each other, wherever the imports stand: in a function or under TYPE_CHECKING as well."""
    known = {module.name for module in modules}
    graph = {module.name: {target for target, _ in _edges(module, known)} for module in modules}
    found: Violations = {}
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle = sorted(set(error.args[1]))
            found[" <-> ".join(circle)] = (
                f"{', '.join(circle)}: import each other; move what both need to a module below them"
            )
            graph = {name: targets.difference(circle) for name, targets in graph.items() if name not in circle}
        else:
            return found


def foreign_imports(modules: Sequence[Module], library: str, home: str) -> Violations:
    """Imports of a library outside of the one package that may use it."""
    return {
        f"{module.name} -> {library}": f"{module.name}:{each.line}: only {home} imports {library}; move this code there"
        for module in modules
        if not _is_in(module.name, home)
        for each in module.imports
        if _is_in(each.target, library)
    }


HANDLER_MODULES = ("dispatcher.dispatching", "dispatcher.mailbox.processor", "statemachines")
"""What only handler threads run, or has state that they own."""
HANDLER_STATE = {"apps", "nodes", "attempts", "containers", "rm_context"}
"""Attributes that hold such state."""


def inner_imports(modules: Sequence[Module], packages: Iterable[str], public: Container[str]) -> list[str]:
    """Imports of modules of `packages` that are not among the public ones: `module:line -> target`."""
    roots = set(packages)
    return [
        f"{module.name}:{each.line} -> {each.target}"
        for module in modules
        for each in module.imports
        if each.target.partition(".")[0] in roots and each.target not in public
    ]


def handler_state_reaches(modules: Sequence[Module], homes: Sequence[str]) -> Violations:
    """Modules of threads that are no handler threads, and look at what handlers own instead of asking for it."""
    found = {}
    for module in modules:
        if not any(_is_in(module.name, home) for home in homes):
            continue
        for each in module.imports:
            for target in (each.target, *(f"{each.target}.{name}" for name in each.names)):
                if any(_is_in(target, owner) for owner in HANDLER_MODULES):
                    found[f"{module.name} -> {target}"] = (
                        f"{module.name}:{each.line}: imports {target}, whose state handler threads own; ask a "
                        "DispatcherView, or send mail"
                    )
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and (
                node.attr in HANDLER_STATE or _last_name(node.value) in ("context", "_context")
            ):
                name = f"{_last_name(node.value) or '?'}.{node.attr}"
                found[f"{module.name}: {name}"] = (
                    f"{module.name}:{node.lineno}: {name} is a handler thread's; read a snapshot that it publishes"
                )
    return found


RM_WEB_IMPORTS = (
    *(f"statemachines.resourcemanager.{name}" for name in ("records", "reports", "read", "resource_manager", "web")),
    "statemachines.resourcemanager.scheduler.queue_info",
    "statemachines.resourcemanager.services.admin_service",
    "statemachines.resourcemanager.services.client_rm_service",
    "statemachines.graph",
    "statemachines.registry",
)
"""What the resource manager's web address may know of it: values, and services that any thread may call."""
RM_WEB_MANAGER = {
    *("admin", "clients", "dispatcher", "dispatchers", "name", "registry", "scheduler_name", "settings", "started_ms"),
    *("failure_cause", "in_state", "is_ending", "is_starting", "scheduler_path", "show_metrics", "state", "store_name"),
}
"""What it may ask a resource manager: attributes that are for any thread."""


def resource_manager_reaches(modules: Sequence[Module], homes: Sequence[str], publishers: Container[str]) -> Violations:
    """Modules of the web address and its read model, except those that publish, that look at what the handler thread
    owns."""
    found = {}
    for module in modules:
        if module.name in publishers or not any(_is_in(module.name, home) for home in homes):
            continue
        for each in module.imports:
            inner = tuple(f"{each.target}.{name}" for name in each.names) or (each.target,)
            for target in inner:
                if _is_in(target, "statemachines") and not any(_is_in(target, known) for known in RM_WEB_IMPORTS):
                    found[f"{module.name} -> {target}"] = (
                        f"{module.name}:{each.line}: imports {target}, which may hold state of the handler thread; "
                        "read the model, or send mail"
                    )
        for node in module.nodes:
            if not isinstance(node, ast.Attribute):
                continue
            owner = (_last_name(node.value) or "").lstrip("_")
            is_state = node.attr.lstrip("_") in ("context", "rm_context")
            if is_state or owner == "context" or (owner == "manager" and node.attr not in RM_WEB_MANAGER):
                found[f"{module.name}: {owner or '?'}.{node.attr}"] = (
                    f"{module.name}:{node.lineno}: {owner or '?'}.{node.attr} is the handler thread's; read the model"
                )
    return found


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements in a module or statement, at any depth. Expressions, most of a tree, are skipped."""
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        for each in getattr(node, block, ()):
            yield each
            yield from _statements(each)


def _imports_of(module: Module) -> Iterator[Import]:
    for node in module.nodes if "import_module" in module.text else _statements(module.tree):
        if isinstance(node, ast.Import):
            targets: list[tuple[str, tuple[str, ...]]] = [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            around = module.name.split(".")[: None if not node.level else module.is_package - node.level or None]
            target = ".".join(filter(None, [*(around if node.level else ()), node.module]))
            targets = [(target, tuple(alias.name for alias in node.names))]
        elif isinstance(node, ast.Call) and _last_name(node.func) == "import_module":
            targets = [(each.value, ()) for each in node.args[:1] if isinstance(each, ast.Constant)]
        else:
            continue
        yield from (Import(target, names, node.lineno) for target, names in targets)


def _edges(module: Module, names: Container[str]) -> Iterator[tuple[str, int]]:
    """The modules among `names` that a module imports. A name in them that it imports counts as that module."""
    for each in module.imports:
        inner = [f"{each.target}.{name}" for name in each.names]
        targets = [name for name in inner if name in names]
        if len(targets) < max(1, len(inner)) and each.target in names:
            targets.append(each.target)
        yield from ((target, each.line) for target in targets if target != module.name)


def _room(name: str, room_of: Mapping[str, str]) -> str | None:
    while name not in room_of:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return None
    return room_of[name]


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


# -- fields that threads share -----------------------------------------------------------------------------------------

_PRIMITIVES = {"Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier", "Thread", "local"}
_CONTAINERS = {
    "list",
    "dict",
    "set",
    "deque",
    "defaultdict",
    "OrderedDict",
    "Counter",
    "WeakValueDictionary",
    "WeakKeyDictionary",
    "WeakSet",
}
_ANY_THREAD = re.compile(r"\b(any|every) thread\b", re.IGNORECASE)
_TOUCHED_BY_SEVERAL = re.compile(
    r"\b(any|every|each) (thread|adds|copies|lists|pops|reads)\b|threads?\b.*\b(pops|takes|reads|copies)\b",
    re.IGNORECASE | re.DOTALL,
)
_LOCKED = re.compile(r"guarded by|under (the|its|that|a|_)|thread only", re.IGNORECASE)
_ATOMIC = re.compile(r"\b(is|are|one|two) atomic\b|\bin single steps\b", re.IGNORECASE)
_OWNER = re.compile(
    r"thread|guarded|under |lock|invariant|written|before|once|caller|owner|never changes", re.IGNORECASE
)


def unowned_fields(modules: Sequence[Module], shared: Iterable[str] = ()) -> Violations:
    """Fields of classes for several threads whose line does not say who may touch them.

    A class is for several threads if it makes a primitive of `threading`, if its docstring says so, or if it is in
    `shared` (as `module.Class`). Such a field is one that a method rebinds, or that holds a container made here; one
    that only `__init__` sets refers to the same object forever, whose own class says what holds for it.
    """
    listed, found = set(shared), {}
    for module in modules:
        for node in module.nodes:
            if not isinstance(node, ast.ClassDef):
                continue
            if f"{module.name}.{node.name}" not in listed and not _is_shared(node):
                continue
            for name, statement in _fields_to_own(node):
                if not _OWNER.search(_comment_of(module, statement)):
                    found[f"{module.name}.{node.name}.{name}"] = (
                        f"{module.name}:{statement.lineno}: threads share {node.name}; say on the line of `{name}` "
                        "which thread may touch it, or which lock guards it"
                    )
    return found


def unlocked_containers(modules: Sequence[Module]) -> Violations:
    """Containers that several threads touch without a lock of ours, as the comments on their fields tell."""
    found: Violations = {}
    for module in modules:
        for node in module.nodes:
            if not isinstance(node, ast.ClassDef):
                continue
            for name, statement in _fields_to_own(node):
                comment = _comment_of(module, statement)
                value = getattr(statement, "value", None)
                if _makes_container(value) and _TOUCHED_BY_SEVERAL.search(comment) and not _LOCKED.search(comment):
                    found[f"{module.name}.{node.name}.{name}"] = (
                        f"{module.name}:{statement.lineno}: threads share `{name}` without a lock; say in "
                        "conventions.toml why each of their calls is whole without a global interpreter lock"
                    )
    return found


def arguments_from_the_interpreter_lock(modules: Sequence[Module]) -> Violations:
    """Lines that call a step atomic, which only a global interpreter lock may make it."""
    return {
        f"{module.name}:{number}": f"{module.name}:{number}: say which lock makes it one step, not that it is: {line}"
        for module in modules
        for number, line in enumerate(module.lines, 1)
        if _ATOMIC.search(line)
    }


def _is_shared(node: ast.ClassDef) -> bool:
    if _ANY_THREAD.search(ast.get_docstring(node) or ""):
        return True
    return any(
        isinstance(each, ast.Call) and _is_primitive(each) for method in _methods(node) for each in ast.walk(method)
    )


def _is_primitive(call: ast.Call) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr in _PRIMITIVES
        and isinstance(function.value, ast.Name)
        and function.value.id == "threading"
    )


def _fields_to_own(node: ast.ClassDef) -> Iterator[tuple[str, ast.stmt]]:
    first: dict[str, ast.stmt] = {}
    rebound: set[str] = set()
    holds_container: set[str] = set()
    for method in _methods(node):
        is_init = method.name == "__init__"
        for statement, name, value in _assignments(method):
            if is_init:
                first.setdefault(name, statement)
                if _makes_container(value):
                    holds_container.add(name)
            else:
                rebound.add(name)
    for name, statement in first.items():
        if name in rebound or name in holds_container:
            yield name, statement


def _assignments(method: ast.AST) -> Iterator[tuple[ast.stmt, str, ast.expr | None]]:
    """Each statement in a method that binds an attribute of `self`."""
    for node in ast.walk(method):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets, value = [node.target], node.value
        else:
            continue
        for target in targets:
            for each in ast.walk(target):
                if (
                    isinstance(each, ast.Attribute)
                    and _name_of(each.value) == "self"
                    and isinstance(each.ctx, ast.Store)
                ):
                    yield node, each.attr, value


def _makes_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    return isinstance(value, ast.Call) and _last_name(value.func) in _CONTAINERS


def _comment_of(module: Module, statement: ast.stmt) -> str:
    """The comments on a statement's lines and right above it, and the docstring right below."""
    end = statement.end_lineno or statement.lineno
    of_lines = [_trailing_comment(line) for line in module.lines[statement.lineno - 1 : end]]
    above = statement.lineno - 2
    while above >= 0 and module.lines[above].strip().startswith("#"):
        of_lines.append(module.lines[above])
        above -= 1
    below = module.lines[end].strip() if end < len(module.lines) else ""
    if below.startswith('"""'):
        for line in module.lines[end:]:
            of_lines.append(line)
            if line.strip() != '"""' and line.rstrip().endswith('"""'):
                break
    return "\n".join(of_lines)


def _trailing_comment(line: str) -> str:
    found = re.search(r"#\s.*$", line)
    return found[0] if found else ""


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


# -- private names -----------------------------------------------------------------------------------------------------


_PUBLIC_IN_PYTHON = {"os._exit", "sys._current_frames", "sys._getframe"}


def private_reaches(modules: Sequence[Module]) -> Violations:
    """Private attributes (`_x`) of objects that another module defines."""
    found = {}
    for module in modules:
        own = _private_names(module)
        for node in module.nodes:
            if not isinstance(node, ast.Attribute) or not _is_private(node.attr) or node.attr in own:
                continue
            if _name_of(node.value) in ("self", "cls") or _is_super(node.value):
                continue
            if ast.unparse(node) in _PUBLIC_IN_PYTHON:
                continue
            found[f"{module.name}: {ast.unparse(node)}"] = (
                f"{module.name}:{node.lineno}: {ast.unparse(node)} is private to another module; give its class a "
                "method for this"
            )
    return found


def _private_names(module: Module) -> set[str]:
    """Those that the module itself defines: its functions and classes, and the attributes of these."""
    names = set()
    for node in module.nodes:
        if isinstance(node, ast.Attribute):
            if isinstance(node.ctx, ast.Store) and _name_of(node.value) in ("self", "cls"):
                names.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
            names.update(_names_in_body(node))
    return names


def _names_in_body(node: ast.ClassDef) -> Iterator[str]:
    """Of a class: what its body assigns, and its slots."""
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign | ast.Assign):
            continue
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets
        yield from (target.id for target in targets if isinstance(target, ast.Name))
        if any(_name_of(target) == "__slots__" for target in targets):
            yield from (each.value for each in ast.walk(statement) if isinstance(each, ast.Constant))


def _is_private(name: str) -> bool:
    """`_x`; not `__x__`, nor what namedtuples and Enums call so because it is public: `_replace`, `_name_`."""
    public = ("_replace", "_asdict", "_make", "_fields")
    return name.startswith("_") and not name.endswith("_") and name not in public


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _name_of(node.func) == "super"


# -- sizes -------------------------------------------------------------------------------------------------------------


def too_big(modules: Sequence[Module], most: Sizes = BOUND) -> Violations:
    """Modules, functions and folders beyond `most`."""
    found = {}
    folders: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules:
        if not module.is_package:
            folders[module.name.rpartition(".")[0]].append(module.name)
        if len(module.lines) > most.module_lines:
            found[module.name] = f"{module.name}: {len(module.lines)} lines, {most.module_lines} at most"
        for name, function in _functions(module.tree):
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            if length > most.function_lines:
                place = f"{module.name}:{function.lineno}"
                found[f"{module.name}:{name}"] = f"{place}: {name} has {length} lines, {most.function_lines} at most"
    for folder, names in folders.items():
        if len(names) > most.modules_in_folder:
            found[f"{folder}/"] = f"{folder}: {len(names)} modules, {most.modules_in_folder} at most"
    return found


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node
        name = (
            f"{prefix}{node.name}."
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            else prefix
        )
        yield from _functions(node, name)


# -- sleeps ------------------------------------------------------------------------------------------------------------


def sleeps(modules: Sequence[Module]) -> Violations:
    """Calls of `sleep` for more than 0 seconds."""
    found = {}
    for module in modules:
        if "sleep" not in module.text:
            continue
        for name, function in _outer_functions(module.tree):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and _last_name(node.func) == "sleep" and not _is_zero(node.args):
                    found[f"{module.name}:{name}"] = (
                        f"{module.name}:{node.lineno}: {name} sleeps; wait for an event with a timeout, or advance a "
                        "ManualClock"
                    )
    return found


def plain_errors(modules: Sequence[Module]) -> Violations:
    """Errors of an argument or a state that no DispatcherError stands above."""
    found = {}
    for module in modules:
        for node in module.nodes:
            if not (isinstance(node, ast.Raise) and node.exc is not None):
                continue
            name = _last_name(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
            if name in ("ValueError", "TypeError", "RuntimeError"):
                found[module.name] = (
                    f"{module.name}:{node.lineno}: raises a plain {name}; take InvalidValueError, InvalidTypeError or "
                    "DeadlockError of dispatcher.errors, or an error of this package"
                )
    return found


def raw_prints(modules: Sequence[Module]) -> Violations:
    """Calls of `print` and `typer.echo` with anything but a literal: names of others may be in it."""
    found = {}
    for module in modules:
        for node in module.nodes:
            is_print = isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "typer.echo", "typer.secho")
            if is_print and not all(isinstance(argument, ast.Constant) for argument in node.args):
                found[module.name] = (
                    f"{module.name}:{node.lineno}: prints what may be foreign; use echo, say and the like of "
                    "dispatcher.cli.console, which escape it"
                )
    return found


def _outer_functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions and methods, but none in another function."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{method.name}", method) for method in _methods(node))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node


def _is_zero(arguments: Sequence[ast.expr]) -> bool:
    return bool(arguments) and isinstance(arguments[0], ast.Constant) and arguments[0].value == 0


# -- clocks ------------------------------------------------------------------------------------------------------------


_WALL_CLOCKS = {
    *(f"time.{name}" for name in ("time", "time_ns", "localtime", "gmtime", "ctime", "strftime", "clock_gettime")),
    *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
    "datetime.date.today",
}


def wall_clock_reads(modules: Sequence[Module], home: str) -> Violations:
    """What in the package `home` reads the wall clock or hands it on, be it called, a default or an alias.

    An interval or a timeout by that clock changes its length when the clock is set.
    """
    found = {}
    for module in modules:
        if not _is_in(module.name, home):
            continue
        # What each name stands for: "time" for the module, "time.time" for the function.
        meant = {}
        for node in module.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                source = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                meant.update({alias.asname or alias.name: f"{source}{alias.name}" for alias in node.names})
        for scope, node in _scoped(module.tree):
            if isinstance(node, ast.Name | ast.Attribute) and _meaning(node, meant) in _WALL_CLOCKS:
                key = f"{module.name}:{scope}"
                found[key] = (
                    f"{module.name}:{node.lineno}: {scope or 'the module'} reads the wall clock, which may be set; use "
                    "time.monotonic or perf_counter_ns for intervals, or list why the time of day is wanted"
                )
    return found


def _meaning(node: ast.AST, meant: Mapping[str, str]) -> str:
    """The full name of what an expression names; empty if it does not begin with an imported name."""
    if isinstance(node, ast.Attribute):
        before = _meaning(node.value, meant)
        return f"{before}.{node.attr}" if before else ""
    return meant.get(_name_of(node) or "", "")


def _scoped(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Each node, with the name of the function or class that it is in."""
    for node in ast.iter_child_nodes(tree):
        is_scope = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        name = f"{scope}.{node.name}".lstrip(".") if is_scope else scope  # type: ignore[attr-defined]
        yield name, node
        yield from _scoped(node, name)


# -- documents ---------------------------------------------------------------------------------------------------------


def missing_files(documents: Mapping[str, str], root: Path, folders: Iterable[str]) -> Violations:
    """Paths in the text of documents, by name, that lead from `root` into one of `folders`, and to nothing."""
    path = re.compile(rf"`((?:{'|'.join(map(re.escape, folders))})/[\w./-]*)")
    return {
        f"{name}: {target}": f"{name}: {target} does not exist; name its replacement"
        for name, text in documents.items()
        for target in path.findall(text)
        if not (root / target).exists()
    }


# -- names -------------------------------------------------------------------------------------------------------------


def _name_of(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _last_name(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else _name_of(node)
