"""Failed applications by cause: how many are kept, and how many failed in each of the last minutes.

They are counted as their reports come and go, so the cost of a page grows with the causes and owners, not with the
applications. The counts follow from the kept reports alone, so a restart doesn't change them. One loop's thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from statemachines.resourcemanager.reports import ApplicationReport, FailureCause, view_key

MINUTES: Final = 30
MOST: Final = 12
"""Maximum number of groups: the smaller ones are merged into the last."""
_SLICE_MS: Final = 10_000
"""Failures are counted by slices of time."""
_SLICES: Final = 60_000 // _SLICE_MS

_Key = tuple[FailureCause, int | None]
"""The cause, and the exit status of the last master."""


class FailedGroup(NamedTuple):
    """The failed applications of one cause."""

    cause: FailureCause | None
    """None: the smaller groups together."""
    exit_status: int | None
    apps: int
    """How many of them are kept."""
    last_ms: int
    """When the last of them failed, Unix ms."""
    minutes: tuple[int, ...]
    """How many failed in each of the last MINUTES minutes, the present one last."""

    @property
    def sentence(self) -> str:
        return self.cause.sentence(self.exit_status) if self.cause is not None else "for other reasons"

    def a_minute(self, over: int) -> float:
        """Failures per minute, over the last `over` minutes."""
        return sum(self.minutes[-over:]) / over


class _FailedOfCause:
    """The failed applications of one cause that the same users may see."""

    __slots__ = ("count", "last_ms", "sample", "slices")

    def __init__(self, sample: ApplicationReport) -> None:
        self.sample = sample
        self.count = 0
        self.last_ms = 0
        self.slices: Counter[int] = Counter()  # by the number of the slice in which they failed; without old ones


class Failures:
    """The failed applications of a read model."""

    def __init__(self) -> None:
        self._cells: dict[tuple[_Key, tuple[str, str, str | None]], _FailedOfCause] = {}

    def take(self, app: ApplicationReport, sign: int) -> None:
        """Count a failed application; `sign` -1: it is no longer kept."""
        assert app.failure is not None  # it has failed
        key = (app.failure, app.exit_status), view_key(app)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _FailedOfCause(app)
        cell.count += sign
        if not cell.count:
            del self._cells[key]
            return
        at_ms = app.finish_ms or app.start_ms
        cell.last_ms = max(cell.last_ms, at_ms)
        slice_ = at_ms // _SLICE_MS
        cell.slices[slice_] += sign
        if cell.slices[slice_] <= 0:
            del cell.slices[slice_]
        while len(cell.slices) > MINUTES * _SLICES:
            del cell.slices[min(cell.slices)]

    def groups(self, may_view: Callable[[ApplicationReport], bool], now_ms: int) -> list[FailedGroup]:
        """Of the applications that a user may view: those with the most failures in the last minutes first."""
        found: dict[_Key, list[_FailedOfCause]] = {}
        for (key, _), cell in self._cells.items():
            if may_view(cell.sample):
                found.setdefault(key, []).append(cell)
        groups = [_group(*key, cells, now_ms) for key, cells in found.items()]
        groups.sort(key=lambda each: (sum(each.minutes), each.last_ms, each.apps), reverse=True)
        if len(groups) > MOST:
            groups[MOST - 1 :] = [_together(groups[MOST - 1 :])]
        return groups


def _group(cause: FailureCause, exit_status: int | None, cells: Iterable[_FailedOfCause], now_ms: int) -> FailedGroup:
    minutes, present = [0] * MINUTES, now_ms // _SLICE_MS
    apps = last_ms = 0
    for cell in cells:
        apps += cell.count
        last_ms = max(last_ms, cell.last_ms)
        for slice_, failed in cell.slices.items():
            age = max(0, present - slice_) // _SLICES
            if age < MINUTES:
                minutes[MINUTES - 1 - age] += failed
    return FailedGroup(cause, exit_status, apps, last_ms, tuple(minutes))


def _together(groups: Iterable[FailedGroup]) -> FailedGroup:
    groups = list(groups)
    minutes = tuple(map(sum, zip(*(each.minutes for each in groups), strict=True)))
    apps, last_ms = sum(each.apps for each in groups), max(each.last_ms for each in groups)
    return FailedGroup(None, None, apps, last_ms, minutes)
