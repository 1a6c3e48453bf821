"""The configuration of a daemon in the ops API: the settings of each service, without secrets.

A service's configuration is its attribute `settings`: a pydantic model, such as a `ConfigModel`, or a mapping.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, Field

from dispatcher.ops.answers import Answer, Gets, Page, page_of
from dispatcher.ops.process import children, service_roots
from dispatcher.service import Service
from dispatcher.util.foreign import class_name, describe, plain_text, text_of
from dispatcher.util.terminal import one_line
from dispatcher.view import dispatchers
from dispatcher.web.plain_answers import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.ops.shared import Ops

HIDDEN: Final = "(not shown)"
_SECRETS: Final = ("secret", "token", "pass", "pwd", "key", "credential", "dsn", "authorization", "cookie")
_LOGIN: Final = re.compile(r"(?<=://)\S*@")
"""The user and the password in an address. The password may have a slash or an @ that should have been quoted."""
_GIVEN: Final = re.compile(
    rf"""(?i)((?:{"|".join(_SECRETS)})[\w.-]*(?:\s*=\s*|['"]\s*:\s*))(?:'[^']*'|"[^"]*"|[^\s&;,)]+)"""
)
"""A secret within a text, as in `?token=...`, `password=...` of a connection, or a `repr`."""
_DEEPEST: Final = 20
_MOST_ITEMS: Final = 1000
"""Of a list or a mapping."""


class Configured(Answer):
    """One of `/configuration`: a service that has settings, or the journal of a dispatcher."""

    name: str
    kind: str = Field(default="", alias="class")
    settings: dict[str, Any] = {}
    defaults: dict[str, Any] | None = None
    """None: the settings have no defaults."""


def configuration() -> list[Configured]:
    """The settings of every service that has some, in the order of the tree, and of the journals of dispatchers.

    Settings that several services share come once, and so do those that are part of other ones.
    """
    found: list[Configured] = []
    seen: set[int] = set()

    def add(name: str, kind: str, settings: Any) -> None:
        if isinstance(settings, BaseModel | Mapping) and id(settings) not in seen:
            seen.update(_parts(settings))
            found.append(_configured(name, kind, settings))

    for service in _in_order():
        add(service.name, class_name(service), _settings_of(service))
    for view in dispatchers():
        add(f"{view.name}, journal", class_name(view.journal_config), view.journal_config)
    return found


def without_secrets(value: Any, depth: int = 0) -> Any:
    """A copy for JSON in which the values of keys that sound like secrets are hidden, and logins in addresses.

    >>> without_secrets({"tokens_file": "/etc/tokens", "probes_need_token": False, "port": 0})
    {'tokens_file': '(not shown)', 'probes_need_token': False, 'port': 0}
    >>> without_secrets({"broker": "redis://shop:secret@host:6379/0"})
    {'broker': 'redis://(not shown)@host:6379/0'}
    >>> without_secrets({"store": "host=db password='a b' port=1"})
    {'store': 'host=db password=(not shown) port=1'}
    """
    if depth > _DEEPEST:
        return "..."
    value = _with_names(value)
    if isinstance(value, Mapping):
        items = list(value.items())[:_MOST_ITEMS]
        return {
            _text_without_secrets(str(name)): (
                HIDDEN if _is_secret(str(name), each) else without_secrets(each, depth + 1)
            )
            for name, each in items
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [without_secrets(each, depth + 1) for each in list(value)[:_MOST_ITEMS]]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _text_without_secrets(value if isinstance(value, str) else text_of(value))


def _text_without_secrets(text: str) -> str:
    return _GIVEN.sub(rf"\1{HIDDEN}", _LOGIN.sub(f"{HIDDEN}@", plain_text(text)))


def _in_order() -> Iterator[Service]:
    """Every service, each before its own services."""
    left = service_roots()[::-1]
    seen: set[int] = set()
    while left:
        service = left.pop()
        if id(service) not in seen:
            seen.add(id(service))
            yield service
            left += reversed(children(service))


def _settings_of(service: Service) -> Any:
    """Of a foreign class, whose attribute may raise."""
    try:
        return getattr(service, "settings", None)
    except Exception:
        return None


def _parts(settings: Any) -> Iterator[int]:
    """The ids of a model and of the models in its fields."""
    yield id(settings)
    if isinstance(settings, BaseModel):
        for value in settings.__dict__.values():
            if isinstance(value, BaseModel):
                yield from _parts(value)


def _configured(name: str, kind: str, settings: BaseModel | Mapping[str, Any]) -> Configured:
    """Settings are foreign: whatever they raise is their text."""
    try:
        shown, defaults = without_secrets(settings), _defaults(settings)
    except Exception as error:
        shown, defaults = {"error": _text_without_secrets(one_line(describe(error)))}, None
    if not isinstance(shown, dict):  # of a model that is a list, or that writes itself as a text
        shown, defaults = {"": shown}, None
    return Configured(name=plain_text(name), kind=kind, settings=shown, defaults=defaults)


def _defaults(settings: BaseModel | Mapping[str, Any]) -> dict[str, Any] | None:
    if not isinstance(settings, BaseModel):
        return None
    defaults: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        if not field.is_required():
            with suppress(Exception):  # a foreign factory, which may need the values of other fields
                defaults[name] = field.get_default(call_default_factory=True)
    found: dict[str, Any] = without_secrets(defaults)
    return found


def _with_names(value: Any) -> Any:
    """What has named fields as a mapping: without their names, nothing tells which of them are secret."""
    if isinstance(value, BaseModel):
        return json.loads(value.model_dump_json())
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value) if each.repr}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    return value


def _is_secret(name: str, value: Any) -> bool:
    return value is not None and not isinstance(value, bool) and any(word in name.lower() for word in _SECRETS)


# -- endpoints ---------------------------------------------------------------------------------------------------------


async def _configuration(ops: Ops, request: Request) -> Page[Configured]:
    sight = await ops.sight(request)
    if not sight.is_whole:
        raise Refusal(403, "the configuration is shown to those who may see everything")
    return page_of(request, await ops.workers.run(configuration))


GETS: Final[Gets] = {"/configuration": _configuration}
