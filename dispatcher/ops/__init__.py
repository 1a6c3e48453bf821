"""The ops API: what a daemon does right now, as JSON over HTTP. It needs the extra `web`; importing this does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.ops.config import OpsConfig

if TYPE_CHECKING:
    from dispatcher.ops.app import ops_app
    from dispatcher.ops.door import OpsDoor

__all__ = ["OpsConfig", "OpsDoor", "ops_app"]

_HOMES = {"OpsDoor": "dispatcher.ops.door", "ops_app": "dispatcher.ops.app"}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from dispatcher.errors import DispatcherError

    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        raise DispatcherError(
            f"the ops API needs its extra (no module {error.name}): pip install 'central-dispatcher[web]'"
        ) from None
    value = globals()[name] = getattr(module, name)
    return value
