"""What a module and its classes show to users, from the sources and from compiled modules; see tests/test_compiled.py.

As a program it prints what all modules show, as JSON. With the argument `sources`, it loads the sources of compiled
modules, which are beside them.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ClassMethodDescriptorType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

Shown = dict[str, str]
ROOT = Path(__file__).parents[1]
PACKAGES = ("dispatcher", "statemachines", "pipeline")
DATA = "data of an instance"
NO_SIGNATURE = "a signature that is not known"
_DESCRIPTORS = (property, GetSetDescriptorType, MemberDescriptorType)


class Sources:
    """Finds the sources of our modules, also of those with an extension module beside them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        file = ROOT / f"{name.replace('.', '/')}.py"
        return spec_from_file_location(name, file) if name.startswith(PACKAGES) and file.is_file() else None


def module_names() -> Iterator[str]:
    """The public modules of our packages."""
    for package in PACKAGES:
        for each in pkgutil.walk_packages([str(ROOT / package)], f"{package}.", onerror=lambda name: None):
            if not any(part.startswith("_") for part in each.name.split(".")):
                yield each.name


def shown_by(modules: Iterable[str]) -> Shown:
    """Each public name and public attribute of a class: its kind, a constant's value, the signature of what is called.

    Docstrings and annotations are left out: mypyc keeps neither.
    """
    shown: Shown = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except Exception as missing:  # an extra; Spark has an error of its own
            shown[name] = f"cannot be imported: {missing}"
            continue
        for attribute, value in _public(vars(module).items()):
            shown[f"{name}.{attribute}"] = _described(value)
            if isinstance(value, type) and value.__module__ == name:
                for inner, _ in _public((each, None) for each in dir(value)):
                    shown[f"{name}.{attribute}.{inner}"] = _described_in(value, inner)
    return shown


def _public(names: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in names if not name.startswith("_"))


def _described(value: Any) -> str:
    if isinstance(value, type):
        bases = ", ".join(base.__qualname__ for base in value.__mro__[1:])
        is_ours = value.__module__.startswith(PACKAGES)
        return f"class {value.__module__}.{value.__qualname__}({bases}) {_signature(value) if is_ours else ''}"
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if callable(value):
        return f"callable {_signature(value)}"
    return f"constant {_text(value)}"


def _described_in(kind: type, name: str) -> str:
    attribute = inspect.getattr_static(kind, name)
    if isinstance(attribute, _DESCRIPTORS):
        return DATA
    if isinstance(attribute, classmethod | ClassMethodDescriptorType):
        return f"class method {_signature(getattr(kind, name))}"
    if isinstance(attribute, staticmethod):
        return f"static method {_signature(attribute.__func__)}"
    return _described(attribute)


def _signature(function: Any) -> str:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return NO_SIGNATURE
    return ", ".join(
        f"{each.kind.description} {each.name} {_text(each.default)}" for each in parameters if each.name != "self"
    )


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str | bytes | Enum):
        return repr(value)
    return f"of {type(value).__qualname__}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if sys.argv[1:] == ["sources"]:
        sys.meta_path.insert(0, Sources())  # type: ignore[arg-type]
    json.dump(shown_by(module_names()), sys.stdout)
