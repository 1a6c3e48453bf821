"""Packages that import what they export when it is first used. Importing this costs next to nothing."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in `typing`, whose import takes a while
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import CodeType


def lazy_names(package: str, homes: Mapping[str, str] | None = None) -> Callable[[str], object]:
    """A `__getattr__` for the package, whose `__init__` calls this: `homes` has the module of each name.

    None: the imports that are written in the `__init__`, under `if TYPE_CHECKING:`.
    """
    code = sys._getframe(1).f_code
    known = homes

    def find(name: str) -> object:
        nonlocal known
        if known is None:
            known = _written_imports(code)
        home = known.get(name)
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
