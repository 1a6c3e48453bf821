"""The ops API: what a daemon does right now, as JSON over HTTP. It needs the extra `web`; importing this does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatcher.util.lazy import lazy_names

if TYPE_CHECKING:
    from dispatcher.ops.app import ops_app
    from dispatcher.ops.config import OpsConfig
    from dispatcher.ops.door import OpsDoor

__all__ = ["OpsConfig", "OpsDoor", "ops_app"]

_find = lazy_names(__name__)


def __getattr__(name: str) -> object:
    from dispatcher.errors import DispatcherError

    try:
        return _find(name)
    except ModuleNotFoundError as error:
        raise DispatcherError(
            f"the ops API needs its extra (no module {error.name}): pip install 'central-dispatcher[web]'"
        ) from None
