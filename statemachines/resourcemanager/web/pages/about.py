"""/cluster/about: version, configuration without secrets, licence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from statemachines.resourcemanager.web.pages.site import Site, View

ABOUT: Final = "/cluster/about"
_LICENSE: Final = "Apache-2.0"
HIDDEN: Final = "(not shown)"
_SECRETS: Final = ("secret", "token", "password", "key", "credential")


def routes(site: Site, settings: Mapping[str, Any]) -> Sequence[BaseRoute]:
    """`settings`: the resource manager's configuration, as values for JSON."""
    text = json.dumps(without_secrets(settings), indent=2, ensure_ascii=False)

    async def about(_: Request) -> View:
        values = {
            "info": site.model.info,
            "hadoop_version": site.rm.config.hadoop_version,
            "product": _product(),
            "configuration": text,
        }
        return View("about.html", "About", values, "about")

    return [Route(ABOUT, site.page(about), methods=["GET"])]


def without_secrets(value: Any) -> Any:
    """A copy of the configuration in which the values of keys that sound like secrets are hidden.

    >>> without_secrets({"tokens_file": "/etc/tokens", "port": 0})
    {'tokens_file': '(not shown)', 'port': 0}
    """
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if each is not None and any(word in name for word in _SECRETS) else without_secrets(each)
            for name, each in value.items()
        }
    return [without_secrets(each) for each in value] if isinstance(value, list | tuple) else value


@cache
def _product() -> Mapping[str, str]:
    try:
        return {"version": version("central-dispatcher"), "license": _LICENSE}
    except PackageNotFoundError:  # the source is on the path, and nothing is installed
        return {"version": "of the source", "license": _LICENSE}
