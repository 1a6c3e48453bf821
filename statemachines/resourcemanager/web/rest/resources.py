"""Resources as Hadoop's API has them: whole amounts by the type's name there.

Fractions of a virtual core or of a GPU are rounded up. Every resource has memory, virtual cores and GPUs; other types
are listed where there is some of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from dispatcher.web.plain_answers import json_text
from statemachines.resourcemanager.records.resource import MOST, MaximumAllocation, Resource
from statemachines.resourcemanager.web.rest.rest_endpoints import MOST_INT

MEMORY: Final = "memory-mb"
VCORES: Final = "vcores"
GPUS: Final = "yarn.io/gpu"
_UNITS: Final = {MEMORY: "Mi"}

Amounts = Mapping[str, int]
"""Whole amounts by the name of the type: memory in MB."""


def cores(milli: int) -> int:
    """Whole virtual cores, or GPUs: thousandths are rounded up."""
    return -(-milli // 1000)


def amounts(resource: Resource) -> Amounts:
    """
    >>> amounts(Resource(2048, 1500, gpus=1, gpu_milli=16000, others=(("fpga", 2),)))
    {'memory-mb': 2048, 'vcores': 2, 'yarn.io/gpu': 16, 'fpga': 2}
    """
    return {
        MEMORY: resource.memory_mb,
        VCORES: cores(resource.vcores_milli),
        GPUS: cores(resource.gpu_milli_total),
        **dict(resource.others),
    }


def left(total: Resource, taken: Resource) -> Amounts:
    """What `taken` leaves of a total; negative where it is more than that. Whole amounts add up to the total's."""
    found = dict(amounts(total))
    for name, amount in amounts(taken).items():
        found[name] = found.get(name, 0) - amount
    return found


def shown(found: Amounts, maxima: Amounts | None = None) -> dict[str, Any]:
    """As an object of Hadoop's API. `maxima`: the largest container, by type; None: no maximum."""
    return {
        "memory": found[MEMORY],
        "vCores": found[VCORES],
        "resourceInformations": {
            "resourceInformation": [
                {
                    "name": name,
                    "resourceType": "COUNTABLE",
                    "units": _UNITS.get(name, ""),
                    "value": value,
                    "minimumAllocation": 0,
                    "maximumAllocation": MOST if maxima is None else maxima[name],
                }
                for name, value in found.items()
            ]
        },
    }


def amount(resource: Resource) -> dict[str, Any]:
    """A resource as an object of Hadoop's API."""
    return shown(amounts(resource))


def at_most(maximum: MaximumAllocation) -> Resource:
    """The largest container; Java's greatest int of what has no maximum."""
    memory_mb, milli = maximum.memory_mb, maximum.vcores_milli
    return Resource(MOST_INT if memory_mb is None else memory_mb, MOST_INT * 1000 if milli is None else milli, MOST_INT)


# Long lists have few different resources, and each takes longer to encode than the rest of its object.


@lru_cache(maxsize=4096)
def json_of(resource: Resource) -> str:
    """`amount` as JSON."""
    return json_text(amount(resource))


@lru_cache(maxsize=4096)
def json_left(total: Resource, taken: Resource) -> str:
    """`left` as JSON."""
    return json_text(shown(left(total, taken)))


def text(resource: Resource) -> str:
    """As Hadoop's `Resource` prints itself.

    >>> text(Resource(2048, 1500, gpus=1, gpu_milli=16000))
    '<memory:2048, vCores:2, yarn.io/gpu: 16>'
    """
    found = amounts(resource)
    more = "".join(f", {name}: {found[name]}" for name in found if name not in (MEMORY, VCORES) and found[name])
    return f"<memory:{found[MEMORY]}, vCores:{found[VCORES]}{more}>"
