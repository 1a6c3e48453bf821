"""Whether the tests run against compiled modules, and what differs then."""

from __future__ import annotations

from typing import Any

from dispatcher.queue import posting

IS_COMPILED = not (posting.__file__ or "").endswith(".py")


def attributes_of(part: object) -> dict[str, Any]:
    """As `vars`, and also of an object whose class is compiled."""
    compiled = {name for kind in type(part).__mro__ for name in vars(kind).get("__mypyc_attrs__", ())}
    return {**getattr(part, "__dict__", {}), **{name: getattr(part, name) for name in compiled if hasattr(part, name)}}
