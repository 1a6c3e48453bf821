"""The page of `/metrics`: everything that the collectors of a registry show, without those that raise."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from dispatcher.util import log_files
from dispatcher.util.foreign import class_name, reraise_interrupt, tell

log: logging.Logger = logging.getLogger(__name__)

Encoder = Callable[[Any], bytes]
"""Renders what an object's `collect` returns; of prometheus_client."""


class CollectorFailures:
    """Counts the collectors, and sources of metrics, that raised, by the name of their class. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # leaf lock; replaced in a forked child
        self._counts: Counter[str] = Counter()  # guarded by _lock

    def note(self, collector: object) -> None:
        name = class_name(collector)
        with self._lock:
            self._counts[name] += 1

    def family(self) -> Metric:
        """The counts as a metric."""
        family = CounterMetricFamily(
            "dispatcher_metrics_collector_failures",
            "Collectors and sources of metrics that raised and were left out of a page.",
            labels=["collector"],
        )
        with self._lock:
            counts = dict(self._counts)
        for name, count in counts.items():
            family.add_metric([name], count)
        return family


failures: Final = CollectorFailures()
"""Of the collectors and sources of this process."""


def render_page(registry: CollectorRegistry, encode: Encoder, names: Sequence[str] | None = None) -> bytes:
    """What the collectors of `registry` show now, and how many have raised. Any thread; raises nothing of theirs.

    A collector that raises, or shows something that cannot be rendered, is counted, logged and left out. `names`: only
    the samples with these names; None: all.
    """
    found = [(collector, _families_of(collector, names)) for collector in _collectors_of(registry)]
    try:
        return encode(_CollectedFamilies([*_together(found), *_chosen(_own(), names)]))
    except BaseException as error:
        reraise_interrupt(error)
    # It costs another rendering to see whose families these are, so only now.
    sound = [(collector, families) for collector, families in found if _is_sound(collector, families, encode)]
    return encode(_CollectedFamilies([*_together(sound), *_chosen(_own(), names)]))


def _own() -> list[Metric]:
    """The metrics that every page has, whatever its registry."""
    return [failures.family(), log_files.family()]


class _CollectedFamilies(Collector):
    """A collector of metrics that were collected before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> list[Metric]:
        return self._families


class _TargetInfo(Collector):
    """What a registry says about the process as a whole."""

    def __init__(self, info: dict[str, str]) -> None:
        self._info = info

    def collect(self) -> list[Metric]:
        return [InfoMetricFamily("target", "Target metadata", value=self._info)]


def _collectors_of(registry: CollectorRegistry) -> list[Any]:
    """The registry's collectors; where a release of prometheus_client hides them, the registry as the only one."""
    # The registry's own `collect` ends with the first collector that raises. There is no public list of them; copying
    # the keys is one step.
    known: dict[Any, Any] | None = getattr(registry, "_collector_to_names", None)
    if known is None:
        return [registry]
    info = registry.get_target_info()
    return [*([_TargetInfo(info)] if info else []), *known]


def _families_of(collector: Any, names: Sequence[str] | None) -> list[Metric]:
    try:
        return _chosen(collector.collect(), names)
    except BaseException as error:
        reraise_interrupt(error)
        _leave_out(collector, error)
        return []


def _chosen(families: Iterable[Metric], names: Sequence[str] | None) -> list[Metric]:
    """The families, with the samples of these names only."""
    if names is None:
        return list(families)
    chosen = []
    for family in families:
        samples = [sample for sample in family.samples if sample.name in names]
        if samples:
            part = Metric(family.name, family.documentation, family.type, family.unit)
            part.samples = samples
            chosen.append(part)
    return chosen


def _together(found: Iterable[tuple[Any, list[Metric]]]) -> list[Metric]:
    return [family for _, families in found for family in families]


def _is_sound(collector: Any, families: list[Metric], encode: Encoder) -> bool:
    try:
        encode(_CollectedFamilies(families))
    except BaseException as error:
        reraise_interrupt(error)
        _leave_out(collector, error)
        return False
    return True


def _leave_out(collector: Any, error: BaseException) -> None:
    failures.note(collector)
    message = "a metrics collector raised and is left out of the page: %s"
    tell(log, logging.ERROR, message, class_name(collector), error=error)
