"""Packages that import what they export when it is first used. Importing this costs next to nothing."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in `typing`, whose import takes a while
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType


def lazy_names(package: str) -> Callable[[str], object]:
    """A `__getattr__` for the package, whose `__init__` calls this and imports the names under `if TYPE_CHECKING:`."""
    code = sys._getframe(1).f_code
    homes: dict[str, str] = {}

    def find(name: str) -> object:
        if not homes:
            homes.update(_written_imports(code))
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return find


def _written_imports(code: CodeType) -> dict[str, str]:
    """The module of each name that a module's code imports, whether that import runs or not.

    From the code, because not every loader has the source.
    """
    from dis import get_instructions

    homes, module = {}, ""
    for each in get_instructions(code):
        if each.opname == "IMPORT_NAME":
            module = each.argval
        elif each.opname == "IMPORT_FROM":
            homes[each.argval] = module
    return homes
