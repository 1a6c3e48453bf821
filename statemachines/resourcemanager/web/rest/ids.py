"""Ids in paths, as a client may spell them: more digits than ours have are legal, and so are fewer."""

from __future__ import annotations

import re
from typing import Final

from statemachines.resourcemanager.web.rest.answers import RestError

_APPLICATION: Final = re.compile(r"application_([0-9]{1,19})_([0-9]{1,10})")
_ATTEMPT: Final = re.compile(r"appattempt_([0-9]{1,19})_([0-9]{1,10})_([0-9]{1,10})")
_CONTAINER: Final = re.compile(r"container_(?:e([0-9]{1,10})_)?([0-9]{1,19})_([0-9]{1,10})_([0-9]{1,10})_([0-9]{1,19})")
_NODE: Final = re.compile(r"(.+):([0-9]{1,5})", re.DOTALL)


def application_id(text: str) -> str:
    """The id as ours are spelt. Raises RestError (400), like the functions below.

    >>> application_id("application_1404198295326_3")
    'application_1404198295326_0003'
    """
    timestamp, number = _numbers(_APPLICATION, text, "an application: application_{timestamp}_{number}")
    return f"application_{timestamp}_{number:04d}"


def attempt_id(text: str) -> str:
    timestamp, number, attempt = _numbers(_ATTEMPT, text, "an attempt: appattempt_{timestamp}_{number}_{attempt}")
    return f"appattempt_{timestamp}_{number:04d}_{attempt:06d}"


def container_id(text: str) -> str:
    form = "a container: container_[e{epoch}_]{timestamp}_{number}_{attempt}_{container}"
    epoch, timestamp, number, attempt, container = _numbers(_CONTAINER, text, form)
    era = f"e{epoch:02d}_" if epoch else ""
    return f"container_{era}{timestamp}_{number:04d}_{attempt:02d}_{container:06d}"


def node_id(text: str) -> str:
    match = _NODE.fullmatch(text.strip())
    if match is None:
        raise RestError(400, f"{text!r} is not the id of a node: host:port")
    return f"{match.group(1)}:{int(match.group(2))}"


def _numbers(pattern: re.Pattern[str], text: str, form: str) -> list[int]:
    match = pattern.fullmatch(text.strip())
    if match is None:
        raise RestError(400, f"{text!r} is not the id of {form}")
    return [int(group or 0) for group in match.groups()]
