"""/process: memory, threads, open files, the tree of services, versions, and the configuration as folded lists."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.routing import BaseRoute

from dispatcher.ops.configuration import Configured, configuration
from dispatcher.ops.process import Process, ThreadNow, process_numbers, thread_list
from dispatcher.ops.sight import Sight
from dispatcher.pages.site import Site, View, is_stream

PATH: Final = "/process"
_THREADS_SHOWN: Final = 50
_CONFIGURED_SHOWN: Final = 50
_NAMES: Final = ("name", "host")
"""The keys that name an item of a list."""
_ITEMS_SHOWN: Final = 50


class Setting(NamedTuple):
    """One line of the list."""

    key: str
    text: str
    is_set: bool
    """It differs from its default."""


class ThreadGroup(NamedTuple):
    """What is below one key, or one item of a list; folded."""

    path: str
    name: str
    settings: Sequence[Setting]
    groups: Sequence[ThreadGroup]
    changed: Sequence[str]
    """What differs from the defaults, as keys joined by dots."""
    left_out: int | None
    """Number of items of a list that are not shown; None for anything but a list."""


class _Found(NamedTuple):
    """What the page shows, read at one moment."""

    process: Process
    threads: Sequence[ThreadNow]
    threads_left_out: int
    configuration: Sequence[ThreadGroup]
    configured_left_out: int


def routes(site: Site) -> Sequence[BaseRoute]:
    return [site.get(PATH, process_view)]


async def process_view(site: Site, request: Request) -> View:
    sight = await site.sight(request)
    # The configuration is not a live part, so a script that follows the page doesn't need it.
    is_whole = sight.is_whole and not is_stream(request)
    found = await site.ops.workers.run(partial(_read, site.ops.name, sight, is_whole))
    values = {**found._asdict(), "facts": site.facts(), "is_configuration_hidden": not sight.is_whole}
    return View("process.html", "Process", values, "process", ("process", "services", "threads"), is_clocked=True)


def _read(name: str, sight: Sight, has_configuration: bool) -> _Found:
    """On a thread of its own."""
    threads, configured = thread_list(), configuration() if has_configuration else []
    configured.sort(key=lambda each: each.name != name)  # the daemon's own settings first
    return _Found(
        process_numbers(name, sight),
        threads[:_THREADS_SHOWN],
        max(0, len(threads) - _THREADS_SHOWN),
        [_group(each, number) for number, each in enumerate(configured[:_CONFIGURED_SHOWN])],
        max(0, len(configured) - _CONFIGURED_SHOWN),
    )


def _group(found: Configured, number: int) -> ThreadGroup:
    return grouped(f"{number}", f"{found.name} ({found.kind})", found.settings, found.defaults)


def grouped(path: str, name: str, value: Any, usual: Mapping[str, Any] | None) -> ThreadGroup:
    """The lines and groups of a mapping, or of a list of mappings.

    `usual`: the defaults. If it is None, nulls and empty values are left out.
    """
    settings: list[Setting] = []
    groups: list[ThreadGroup] = []
    changed: list[str] = []
    for key, each in _entries(value, has_defaults=usual is not None):
        default = usual.get(key) if usual is not None else None
        if _has_parts(each, is_item=isinstance(value, list)):
            group = grouped(f"{path}.{key}", key, each, default if isinstance(default, dict) else None)
            groups.append(group)
            changed += [f"{key}.{below}" for below in group.changed]
            if usual is not None and not isinstance(default, dict) and each != default:
                changed.append(key)
        else:
            settings.append(Setting(key, _text(each), usual is not None and each != default))
    changed = [*(each.key for each in settings if each.is_set), *changed]
    left_out = max(0, len(value) - _ITEMS_SHOWN) if isinstance(value, list) else None
    return ThreadGroup(path, name, settings, groups, changed, left_out)


def _entries(value: Any, *, has_defaults: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for number, item in enumerate(value[:_ITEMS_SHOWN]):
            rest = {key: each for key, each in item.items() if key not in _NAMES}
            yield next((str(item[key]) for key in _NAMES if key in item), f"[{number}]"), rest
    else:
        yield from ((key, each) for key, each in value.items() if has_defaults or each not in (None, "", [], {}))


def _has_parts(value: Any, *, is_item: bool = False) -> bool:
    """Whether it takes more than a line. An item of a list does if it has parts, as a queue with children has."""
    if isinstance(value, Mapping):
        return any(map(_has_parts, value.values())) if is_item else bool(value)
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _text(value: Any) -> str:
    if value in ([], {}):
        return "none"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items() if each not in (None, "", [], {}))
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
