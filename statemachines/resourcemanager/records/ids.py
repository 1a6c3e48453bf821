"""The ids of applications, attempts and containers, in YARN's form.

    application_<cluster timestamp>_<number>
    appattempt_<cluster timestamp>_<number>_<attempt>
    container_[e<epoch>_]<cluster timestamp>_<number>_<attempt>_<container>

The epoch counts the restarts of the resource manager, so that an attempt that outlives one gets unique container ids.
"""

from __future__ import annotations

import re

from dispatcher.errors import InvalidValueError

_APPLICATION = re.compile(r"application_(\d{1,19})_(\d{1,19})", re.ASCII)
_CONTAINER = re.compile(r"container_(?:e\d{1,19}_)?(\d{1,19})_(\d{1,19})_(\d{1,19})_\d{1,19}", re.ASCII)


def application_id(cluster_timestamp: int, number: int) -> str:
    return f"application_{cluster_timestamp}_{number:04d}"


def cluster_timestamp_of(application: str) -> int:
    """When the resource manager that allocated this id was started; 0 if the id is not valid."""
    match = _APPLICATION.fullmatch(application)
    return int(match.group(1)) if match is not None else 0


def attempt_id(application: str, number: int) -> str:
    return f"appattempt{application.removeprefix('application')}_{number:06d}"


def container_prefix(attempt: str, epoch: int = 0) -> str:
    """The prefix of an attempt's container ids; a number of six digits follows."""
    cluster_timestamp, number, attempt_number = attempt.removeprefix("appattempt_").split("_")
    era = f"e{epoch:02d}_" if epoch else ""
    return f"container_{era}{cluster_timestamp}_{number}_{int(attempt_number):02d}_"


def is_application_id(text: str) -> bool:
    return _APPLICATION.fullmatch(text) is not None


def application_of(attempt: str) -> str:
    return "application" + attempt.removeprefix("appattempt").rpartition("_")[0]


def attempt_of(container: str) -> str:
    """Raises ValueError if `container` is not a container id."""
    match = _CONTAINER.fullmatch(container)
    if match is None:
        raise InvalidValueError(f"{container!r} is not the id of a container")
    cluster_timestamp, number, attempt = match.groups()
    return f"appattempt_{cluster_timestamp}_{number}_{int(attempt):06d}"
