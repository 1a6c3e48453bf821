"""Computes all that the report needs of a journal's transitions in one pass.

Most entities begin and end within one part of the journal, so nearly all stays are counted where their rows are read.
An entity whose life crosses the border of a part adds a stretch of its life to the digest; those are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from dispatcher.journal.format.schema import TRANSITIONS
from pipeline.report.digests.arrow_rows import Names, codes, longs, pieces, rows_of, schema_of
from pipeline.report.digests.buckets import GroupedHistograms, Longs
from pipeline.report.digests.event_digest import ROWS_AT_ONCE, DigestRow

LONGEST: Final = 100
"""Maximum stays that are kept for each state."""
READS: Final = tuple(name for name in TRANSITIONS.names if name != "data")
"""The columns of transitions that a digest reads."""

_KIND = "machine string, from_state string, event_type string, to_state string, valid boolean"
_STAY = "machine string, entity string, state string, seq long, from_at long, stay_ns long"
KINDS: Final = {
    "transition_totals": schema_of("count long, first_at long, last_at long"),
    "transition_count": schema_of(f"{_KIND}, count long"),
    "stay_group": schema_of(
        "machine string, state string, log_bucket int, count long, total long, least long, greatest long"
    ),
    "long_stay": schema_of(_STAY),
    "stretch": schema_of(
        "machine string, entity string, from_state string, seq long, at long, to_state string, last_seq long, "
        "last_at long"
    ),
    "move": schema_of(f"seq long, {_KIND}, entity string, at long"),
}
"""The kinds of rows of a digest:

transition_totals: one row; the first and the last time.
transition_count: how often a kind of transition was made, or refused.
stay_group: histograms of the stays that began and ended in one part, in non-final states (ns).
long_stay: the `LONGEST` longest of these stays in each state; seq and from_at of their start.
stretch: one part's share of a life that crosses its borders: from its first change of state (seq, at) to its last
    (last_seq, last_at).
move: the transitions that other tables need: the changes of state of applications and attempts, the allocations and
    ends of containers, and each application's last self-transition.

Several rows of transition_count, stay_group, long_stay and move may have the same keys, to be merged.
"""
_KEPT_STATES = {"RMContainer": ("ALLOCATED", "COMPLETED", "EXPIRED", "RELEASED", "KILLED")}
_KEPT_MACHINES = ("RMApp", "RMAppAttempt")
_GROUPS_HELD: Final = 1 << 18
_LONG: Final = KINDS["long_stay"].append(pa.field("number", pa.int64()))  # of the state
_KINDS = TRANSITIONS.kind_columns


class Ends(NamedTuple):
    """The (machine, state) pairs in which declared machines begin, and those in which they end."""

    first: frozenset[tuple[str, str]]
    final: frozenset[tuple[str, str]]

    @staticmethod
    def of(declared: Iterable[Sequence[str]]) -> Ends:
        """From rows of machine, from_state, event_type, to_state: states that no row enters, and that no row leaves."""
        entered, left, states = set(), set(), set()
        for machine, from_state, _, to_state in declared:
            states |= {(machine, from_state), (machine, to_state)}
            if from_state != to_state:
                entered.add((machine, to_state))
                left.add((machine, from_state))
        return Ends(frozenset(states - entered), frozenset(states - left))


class TransitionDigest:
    """The digest of one part of the transitions. For a single use, by one thread.

    The part holds, for each entity, rows that are consecutive in seq, as a journal's segments do; their order within
    the part does not matter.
    """

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._kinds = Names()
        self._states = Names()  # of (machine, state)
        self._traits = np.empty((5, 0), np.int64)  # by trait and kind
        self._counts = np.zeros(0, np.int64)  # by kind
        self._stays = GroupedHistograms()  # by state and log bucket
        self._totals: list[tuple[int, ...]] = []  # of each piece
        self._long: pa.RecordBatch | None = None
        self._least = np.zeros(0, np.int64)  # by state: a stay up to this length is not among the longest

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[DigestRow]:
        """The digest of batches with the columns `READS`, of any size."""
        for transitions in pieces(batches, ROWS_AT_ONCE):
            yield from self.add(transitions)
        yield from self.rest()

    def add(self, transitions: pa.RecordBatch) -> Iterator[DigestRow]:
        """Add rows with the columns `READS`, best about `ROWS_AT_ONCE`; yields what need not be held."""
        if not transitions.num_rows:
            return
        kinds = self._kinds.numbers(transitions, _KINDS)
        self._learn()
        self._counts += np.bincount(kinds, minlength=len(self._counts))
        at = longs(transitions, "at")
        self._totals.append((len(at), int(at.min()), int(at.max())))
        kept = [_last_of_each(transitions, np.flatnonzero(self._traits[_KEEPS_APPLICATION][kinds]))]
        moves = np.flatnonzero(self._traits[_MOVES][kinds])
        if len(moves):
            yield self._stretches(transitions, moves, kinds[moves])
            kept.append(moves[self._traits[_IS_KEPT][kinds[moves]] > 0])
        rows = transitions.take(pa.array(np.concatenate(kept)))
        if rows.num_rows:
            yield _row("move", rows)
        if self._stays.is_full(_GROUPS_HELD):
            yield self._take_stays()

    def rest(self) -> Iterator[DigestRow]:
        """The rest of the digest, once all rows are added."""
        if self._totals:
            yield self._take_stays()
            yield self._take_counts()
            yield self._take_totals()
        if self._long is not None:
            yield _row("long_stay", self._long)

    def _learn(self) -> None:
        """Add the traits of the kinds of transitions that are new in this piece."""
        known = [self._traits_of(*kind) for kind in self._kinds.known[len(self._counts) :]]
        if known:
            self._traits = np.concatenate([self._traits, np.array(known, np.int64).T], axis=1)
            self._counts = np.concatenate([self._counts, np.zeros(len(known), np.int64)])

    def _traits_of(self, machine: str, from_state: str, _: str, to_state: str, valid: bool) -> list[int]:
        moves = valid and from_state != to_state
        return [
            moves,
            moves and (machine in _KEPT_MACHINES or to_state in _KEPT_STATES.get(machine, ())),
            valid and not moves and machine == "RMApp",
            self._states.number((machine, from_state)),
            self._states.number((machine, to_state)),
        ]

    def _stretches(self, transitions: pa.RecordBatch, moves: Longs, kinds: Longs) -> DigestRow:
        """Count the stays between the moves; returns the stretches of entities that did not begin and end here."""
        machine_of_state = Names()
        machines = np.array([machine_of_state.number(state[:1]) for state in self._states.known])
        left, taken = self._traits[_FROM][kinds], self._traits[_TO][kinds]
        entity = codes(transitions.column("entity").take(pa.array(moves)))
        whose = entity * len(machine_of_state.known) + machines[left]
        order = _by_life(whose, longs(transitions, "seq")[moves])
        moves, whose, left, taken = moves[order], whose[order], left[order], taken[order]
        at = longs(transitions, "at")[moves]
        goes_on = whose[1:] == whose[:-1]
        is_final = np.array([state in self._ends.final for state in self._states.known])
        is_first = np.array([state in self._ends.first for state in self._states.known])
        # A host that registers again is a new machine with the old id: no transition led to its first state.
        stayed = np.flatnonzero(goes_on & (taken[:-1] == left[1:]) & ~is_final[taken[:-1]])
        ns = np.maximum(at[stayed + 1] - at[stayed], 0)
        self._stays.add(taken[stayed], ns)
        self._keep_longest(transitions, moves[stayed], taken[stayed], ns)
        first = np.flatnonzero(np.concatenate(([True], ~goes_on)))
        last = np.concatenate((first[1:], [len(whose)])) - 1
        is_cut = ~is_first[left[first]] | ~is_final[taken[last]]
        begins = transitions.take(pa.array(moves[first[is_cut]]))
        ends = transitions.take(pa.array(moves[last[is_cut]]))
        columns = {name: begins.column(name) for name in ("machine", "entity", "from_state", "seq", "at")}
        columns |= {name: ends.column(of) for name, of in (("to_state", "to_state"), ("last_seq", "seq"))}
        return _row("stretch", columns | {"last_at": ends.column("at")})

    def _keep_longest(self, transitions: pa.RecordBatch, entering: Longs, states: Longs, ns: Longs) -> None:
        """`entering`: the positions in `transitions` of the moves that begin the stays."""
        # Most stays are shorter than the shortest that is kept: only the others are sorted.
        least = np.zeros(len(self._states.known), np.int64)
        least[: len(self._least)] = self._least
        wanted = np.flatnonzero(ns > least[states])
        wanted = wanted[self._longest(states[wanted], ns[wanted])]
        if not len(wanted):
            return
        begins = transitions.take(pa.array(entering[wanted]))
        columns = {name: begins.column(name) for name in ("machine", "entity", "seq")}
        columns |= {"state": begins.column("to_state"), "from_at": begins.column("at"), "stay_ns": ns[wanted]}
        found = rows_of(_LONG, columns | {"number": states[wanted]})
        if self._long is not None:
            [found] = pa.Table.from_batches([self._long, found]).combine_chunks().to_batches()
            found = found.take(pa.array(self._longest(longs(found, "number"), longs(found, "stay_ns"))))
        self._long = found
        kept = longs(found, "number")
        is_full = np.bincount(kept, minlength=len(least)) == LONGEST
        self._least = np.full(len(least), np.iinfo(np.int64).max)
        np.minimum.at(self._least, kept, longs(found, "stay_ns"))
        self._least[~is_full] = 0

    @staticmethod
    def _longest(states: Longs, ns: Longs) -> Longs:
        """Positions of each state's longest stays, without stays of 0 ns."""
        positive = np.flatnonzero(ns > 0)
        order = positive[np.lexsort((-ns[positive], states[positive]))]
        ordered = states[order]
        first = np.searchsorted(ordered, ordered)
        return order[np.arange(len(order)) - first < LONGEST]

    def _take_stays(self) -> DigestRow:
        states, log_bucket, figures = self._stays.take()
        names = {"machine": self._states.column(0, states), "state": self._states.column(1, states)}
        return _row("stay_group", names | figures | {"log_bucket": log_bucket})

    def _take_counts(self) -> DigestRow:
        kinds = np.arange(len(self._counts))
        names = {name: self._kinds.column(position, kinds) for position, name in enumerate(_KINDS)}
        return _row("transition_count", names | {"count": self._counts})

    def _take_totals(self) -> DigestRow:
        counts, first, last = np.array(self._totals, np.int64).T
        return _row("transition_totals", {"count": [counts.sum()], "first_at": [first.min()], "last_at": [last.max()]})


# Positions in a row of traits.
_MOVES, _IS_KEPT, _KEEPS_APPLICATION, _FROM, _TO = range(5)


def _last_of_each(transitions: pa.RecordBatch, rows: Longs) -> Longs:
    """The row with the greatest seq of each entity."""
    if not len(rows):
        return rows
    entity = codes(transitions.column("entity").take(pa.array(rows)))
    order = _by_life(entity, longs(transitions, "seq")[rows])
    is_last = np.concatenate((entity[order][1:] != entity[order][:-1], [True]))
    return rows[order[is_last]]


def _by_life(whose: Longs, seq: Longs) -> Longs:
    """The order of rows by `whose`, then by seq."""
    if (seq[1:] < seq[:-1]).any() or int(whose.max()) >= 1 << 32:
        return np.lexsort((seq, whose))
    # In order of seq, as in a journal: a radix sort, which numpy has for 16 bits, takes a quarter of the time.
    return np.lexsort(((whose & 0xFFFF).astype(np.uint16), (whose >> 16).astype(np.uint16)))


def _row(kind: str, columns: Any) -> DigestRow:
    return kind, rows_of(KINDS[kind], columns)
