"""Resources as amounts by type. Limits compare each type on its own; shares compare the dominant one.

The types are `memory_mb`, `vcores_milli`, `gpu_milli` (thousandths, summed over all devices), and each custom resource
type under its own name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache

from statemachines.resourcemanager.records.resource import GPU_MILLI, NOTHING, MaximumAllocation, Resource, named

Amounts = tuple[tuple[str, int], ...]
"""(type, amount) pairs; amounts > 0."""
_COMMON = frozenset({"memory_mb", "vcores_milli"})
_BUILT_IN = _COMMON | {"gpu_milli"}


@lru_cache(maxsize=4096)
def _common(memory_mb: int, vcores_milli: int) -> Resource:
    """Equal resources are one object: reports by the ten thousand have few different ones."""
    return Resource(memory_mb, vcores_milli)


@lru_cache(maxsize=4096)
def amounts_of(resource: Resource) -> Amounts:
    """
    >>> amounts_of(Resource(2048, 1000, gpus=2, gpu_milli=500))
    (('memory_mb', 2048), ('vcores_milli', 1000), ('gpu_milli', 1000))
    """
    amounts = (
        ("memory_mb", resource.memory_mb),
        ("vcores_milli", resource.vcores_milli),
        ("gpu_milli", resource.gpu_milli_total),
        *resource.others,
    )
    return tuple((type_, amount) for type_, amount in amounts if amount)


def resource_of(amounts: Mapping[str, int]) -> Resource:
    """Return a Resource for reports: it shows all GPU thousandths as one device.

    >>> resource_of({"memory_mb": 5, "gpu_milli": 1500})
    Resource(memory_mb=5, vcores_milli=0, gpus=1, gpu_milli=1500, others=())
    """
    if not amounts:
        return NOTHING
    memory_mb, vcores_milli = amounts.get("memory_mb", 0), amounts.get("vcores_milli", 0)
    if amounts.keys() <= _COMMON:
        return _common(memory_mb, vcores_milli)
    gpu_milli = amounts.get("gpu_milli", 0)
    others = {type_: amount for type_, amount in amounts.items() if type_ not in _BUILT_IN}
    return Resource(memory_mb, vcores_milli, 1 if gpu_milli else 0, gpu_milli or GPU_MILLI, named(others))


def total_of(resources: Iterable[Resource]) -> Resource:
    """The sum, with all GPU thousandths as one device.

    >>> total_of([Resource(1, 2), Resource(3, 4), Resource(3, 4)])
    Resource(memory_mb=7, vcores_milli=10, gpus=0, gpu_milli=1000, others=())
    """
    amounts: dict[str, int] = {}
    for resource in resources:
        add(amounts, amounts_of(resource))
    return resource_of(amounts)


def add(to: dict[str, int], amounts: Iterable[tuple[str, int]], sign: int = 1) -> None:
    """Add in place, or with `sign` -1 subtract. Types whose sum is zero are removed."""
    for type_, amount in amounts:
        if type_ in to:
            sum_ = to[type_] + sign * amount
            if sum_:
                to[type_] = sum_
            else:
                del to[type_]
        elif amount:
            to[type_] = sign * amount


def share_of(amounts: Iterable[tuple[str, int]], total: Mapping[str, float]) -> float:
    """The largest share of `total` over the types that `total` has; for reports, which have no infinite numbers."""
    return max((amount / whole for type_, amount in amounts if (whole := total.get(type_, 0)) > 0), default=0.0)


def maximum_allocation(memory_mb: int | None, vcores: int | None) -> MaximumAllocation:
    """From the keys of a configuration, where virtual cores are whole ones."""
    return MaximumAllocation(memory_mb, None if vcores is None else vcores * 1000)


def dominant_share(amounts: Iterable[tuple[str, int | float]], total: Mapping[str, int]) -> float:
    """The largest share of `total` over all types; infinite for a type that `total` does not have.

    >>> dominant_share([("memory_mb", 2), ("vcores_milli", 3)], {"memory_mb": 10, "vcores_milli": 10})
    0.3
    """
    largest = 0.0
    for type_, amount in amounts:
        whole = total.get(type_, 0)
        share = amount / whole if whole else math.inf
        if share > largest:
            largest = share
    return largest
