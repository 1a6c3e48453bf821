"""Ids in paths, as a client may spell them: more digits than ours have are legal, and so are fewer."""

from __future__ import annotations

import re
from typing import Final

from dispatcher.util.terminal import one_line
from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.web.rest.rest_endpoints import MOST_INT

_MOST_LONG: Final = 2**63 - 1
_APPLICATION: Final = re.compile(r"application_([0-9]{1,19})_([0-9]{1,10})")
_ATTEMPT: Final = re.compile(r"appattempt_([0-9]{1,19})_([0-9]{1,10})_([0-9]{1,10})")
_CONTAINER: Final = re.compile(r"container_(?:e([0-9]{1,10})_)?([0-9]{1,19})_([0-9]{1,10})_([0-9]{1,10})_([0-9]{1,19})")
_NODE: Final = re.compile(r"(.+):([0-9]{1,5})", re.DOTALL)


def application_id(text: str) -> str:
    """The id as ours are spelt. Raises Refusal (400), like the functions below.

    >>> application_id("application_1404198295326_3")
    'application_1404198295326_0003'
    """
    timestamp, number = _numbers(_APPLICATION, text, "ApplicationId", "application_TIMESTAMP_NUMBER", number_at=1)
    return f"application_{timestamp}_{number:04d}"


def attempt_id(text: str) -> str:
    form = "appattempt_TIMESTAMP_NUMBER_ATTEMPT"
    timestamp, number, attempt = _numbers(_ATTEMPT, text, "AppAttemptId", form, number_at=1)
    return f"appattempt_{timestamp}_{number:04d}_{attempt:06d}"


def container_id(text: str) -> str:
    form = "container_[eEPOCH_]TIMESTAMP_NUMBER_ATTEMPT_CONTAINER"
    epoch, timestamp, number, attempt, container = _numbers(_CONTAINER, text, "ContainerId", form, number_at=2)
    era = f"e{epoch:02d}_" if epoch else ""
    return f"container_{era}{timestamp}_{number:04d}_{attempt:02d}_{container:06d}"


def node_id(text: str) -> str:
    match = _NODE.fullmatch(text.strip())
    if match is None:
        raise Refusal(400, f"Invalid NodeId: '{one_line(text, 100)}'; expected HOST:PORT")
    return f"{match.group(1)}:{int(match.group(2))}"


def _numbers(pattern: re.Pattern[str], text: str, what: str, form: str, number_at: int) -> list[int]:
    """`number_at`: the place of the application's number, which is an int of Java; the others may be longs."""
    match = pattern.fullmatch(text.strip())
    numbers = [int(group or 0) for group in match.groups()] if match is not None else []
    if not numbers or max(numbers) > _MOST_LONG or numbers[number_at] > MOST_INT:
        raise Refusal(400, f"Invalid {what}: '{one_line(text, 100)}'; expected {form}")
    return numbers
