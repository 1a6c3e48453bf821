"""The resource manager's web address: YARN's REST API, pages, and the ops API. Serving needs the extra `web`; importing
this does not.

    door         the service: a web host, which runs the app on a thread of its own
    app          the app: routes of `rest/`, `jmx/`, `pages/`, the ops API, /metrics; `shared` is what endpoints share
    users        on whose behalf a request is made, and with `groups` and `visibility`, what its user may see
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statemachines.resourcemanager.records.web_config import RMWebConfig

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.app import resource_manager_app
    from statemachines.resourcemanager.web.door import RMDoor

__all__ = ["RMDoor", "RMWebConfig", "resource_manager_app"]

_HOMES = {
    "RMDoor": "statemachines.resourcemanager.web.door",
    "resource_manager_app": "statemachines.resourcemanager.web.app",
}


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
            f"the web address needs its extra (no module {error.name}): pip install 'central-dispatcher[web]'"
        ) from None
    value = globals()[name] = getattr(module, name)
    return value
