"""Computes all that the report needs of a journal's transitions in one pass.

Most entities begin and end within one part of the journal, so nearly all stays are counted where their rows are read.
An entity whose life crosses the border of a part adds a stretch of its life to the digest; those are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dispatcher.journal.format.schema import TRANSITIONS
from pipeline.spark.report.digests.arrow_rows import Names, codes, ddl_of, longs, pieces, schema_of, wide
from pipeline.spark.report.digests.buckets import BITS, FIGURES, Groups, Longs, log_buckets
from pipeline.spark.shipping import on_executors

LONGEST = 100
READS = TRANSITIONS.names
"""The columns of transitions that a digest reads: all."""

_KINDS = TRANSITIONS.kind_columns
_TEXT = ("machine", "entity", "from_state", "event_type", "to_state")
_LONGS = ("seq", "at", "last_seq", "last_at", "stay_ns", *FIGURES)
KINDS = ("count", "stay", "long_stay", "stretch", "move")
SCHEMA = schema_of(string=("kind", *_TEXT), boolean=("valid",), int=("log_bucket",), long=_LONGS)
DDL = ddl_of(SCHEMA)
_KEPT_STATES = {"RMContainer": ("ALLOCATED", "COMPLETED", "EXPIRED", "RELEASED", "KILLED")}
_KEPT_MACHINES = ("RMApp", "RMAppAttempt")
_ROWS_AT_ONCE = 1 << 18
_GROUPS_HELD = 1 << 18


class Ends(NamedTuple):
    """The (machine, state) pairs in which declared machines begin, and those in which they end."""

    first: frozenset[tuple[str, str]]
    final: frozenset[tuple[str, str]]

    def is_final(self, machine: Column, state: Column) -> Column:
        """Whether a machine's state is final."""
        return F.concat_ws(" ", machine, state).isin(*(" ".join(one) for one in sorted(self.final)))

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


def digest_transitions(transitions: DataFrame, ends: Ends) -> DataFrame:
    """The digest of a journal's transitions; its rows are of five kinds.

    In:  the columns `READS` of journal transitions. Each partition holds, for each entity, rows that are consecutive in
         seq, as a journal's partitions do; their order within a partition does not matter.
    Out: kind string, and for each kind (all other columns are null):
         count: machine, from_state, event_type, to_state string, valid boolean, count long > 0.
         stay: machine, from_state string, log_bucket int, count long > 0, total, least, greatest long (ns): stays that
             began and ended in one part, in non-final states.
         long_stay: machine, entity, from_state string, seq, at long (of its start), stay_ns long > 0: the `LONGEST`
             longest of these stays in each state.
         stretch: machine, entity, from_state string, seq, at long (of its first change of state), to_state string,
             last_seq, last_at long (of its last change): one part's share of a life that crosses its borders.
         move: the transitions that other tables need: seq, machine, entity, from_state, event_type, to_state, at,
             valid. These are the changes of state of applications and attempts, the allocations and ends of containers,
             and each application's last self-transition.
         Several rows of count, stay, long_stay and move may have the same keys, to be merged.
    """

    return transitions.select(*READS).mapInArrow(
        on_executors(lambda batches: TransitionDigest(ends).rows(batches)), DDL
    )


class TransitionDigest:
    """The digest of one part of the transitions. For a single use, by one thread."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._kinds = Names()
        self._states = Names()  # of (machine, state)
        self._traits = np.empty((0, 5), np.int64)  # by kind: _Traits as numbers
        self._counts = np.zeros(0, np.int64)  # by kind
        self._stays = Groups()  # by state and log bucket
        self._long: pa.Table | None = None

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of `SCHEMA`, from batches with the columns `READS`."""
        for transitions in pieces(batches, _ROWS_AT_ONCE):
            kinds = self._kinds.numbers(transitions, _KINDS)
            self._learn()
            self._counts += np.bincount(kinds, minlength=len(self._counts))
            traits = self._traits[kinds]
            kept = [_last_of_each(transitions, np.flatnonzero(traits[:, _KEEPS_APPLICATION]))]
            moves = np.flatnonzero(traits[:, _MOVES])
            if len(moves):
                yield self._stretches(transitions.take(pa.array(moves)), traits[moves])
                kept.append(moves[traits[moves, _IS_KEPT] > 0])
            rows = transitions.take(pa.array(np.concatenate(kept)))
            if rows.num_rows:
                yield wide(SCHEMA, "move", {name: rows.column(name) for name in READS})
            if self._stays.merge() > _GROUPS_HELD:
                yield self._take_stays()
        yield self._take_stays()
        yield self._take_counts()
        if self._long is not None:
            names = ("machine", "entity", "from_state", "seq", "at", "stay_ns")
            yield wide(SCHEMA, "long_stay", {name: self._long.column(name) for name in names})

    def _learn(self) -> None:
        """Add the traits of the kinds of transitions that are new in this piece."""
        known = [self._traits_of(*kind) for kind in self._kinds.known[len(self._traits) :]]
        if known:
            self._traits = np.concatenate([self._traits, np.array(known, np.int64)])
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

    def _stretches(self, moves: pa.Table, traits: Longs) -> pa.RecordBatch:
        """Count the stays between the moves; returns the stretches of entities that did not begin and end here."""
        entity = codes(moves.column("entity"))
        machine_of_state = Names()
        machines = np.array([machine_of_state.number(state[:1]) for state in self._states.known])
        whose = entity * len(machine_of_state.known) + machines[traits[:, _FROM]]
        order = np.lexsort((longs(moves, "seq"), whose))
        whose, at = whose[order], longs(moves, "at")[order]
        left, taken = traits[order, _FROM], traits[order, _TO]
        goes_on = whose[1:] == whose[:-1]
        is_final = np.array([state in self._ends.final for state in self._states.known])
        is_first = np.array([state in self._ends.first for state in self._states.known])
        # A host that registers again is a new machine with the old id: no transition led to its first state.
        stayed = np.flatnonzero(goes_on & (taken[:-1] == left[1:]) & ~is_final[taken[:-1]])
        ns = np.maximum(at[stayed + 1] - at[stayed], 0)
        self._stays.add((taken[stayed] << BITS) + log_buckets(ns) + 1, ns)
        self._keep_longest(moves, order[stayed], taken[stayed], ns)
        first = np.flatnonzero(np.concatenate(([True], ~goes_on)))
        last = np.concatenate((first[1:], [len(whose)])) - 1
        is_cut = ~is_first[left[first]] | ~is_final[taken[last]]
        begins = moves.take(pa.array(order[first[is_cut]]))
        ends = moves.take(pa.array(order[last[is_cut]]))
        columns = {name: begins.column(name) for name in ("machine", "entity", "from_state", "seq", "at")}
        columns |= {name: ends.column(of) for name, of in (("to_state", "to_state"), ("last_seq", "seq"))}
        return wide(SCHEMA, "stretch", columns | {"last_at": ends.column("at")})

    def _keep_longest(self, moves: pa.Table, entering: Longs, states: Longs, ns: Longs) -> None:
        """`entering`: the positions in `moves` of the moves that begin the stays."""
        wanted = self._longest(states, ns)
        begins = moves.take(pa.array(entering[wanted]))
        columns = {name: begins.column(name) for name in ("machine", "entity", "seq", "at")}
        columns |= {"from_state": begins.column("to_state"), "stay_ns": ns[wanted], "number": states[wanted]}
        found = pa.table(columns)
        if self._long is not None:
            found = pa.concat_tables([self._long, found])
            found = found.take(pa.array(self._longest(longs(found, "number"), longs(found, "stay_ns"))))
        self._long = found.combine_chunks()

    @staticmethod
    def _longest(states: Longs, ns: Longs) -> Longs:
        """Positions of each state's longest stays, without stays of 0 ns."""
        positive = np.flatnonzero(ns > 0)
        order = positive[np.lexsort((-ns[positive], states[positive]))]
        ordered = states[order]
        first = np.searchsorted(ordered, ordered)
        return order[np.arange(len(order)) - first < LONGEST]

    def _take_stays(self) -> pa.RecordBatch:
        keys, figures = self._stays.take()
        states, log_bucket = keys >> BITS, (keys & ((1 << BITS) - 1)) - 1
        names = {"machine": self._states.column(0, states), "from_state": self._states.column(1, states)}
        return wide(SCHEMA, "stay", names | figures | {"log_bucket": log_bucket})

    def _take_counts(self) -> pa.RecordBatch:
        kinds = np.arange(len(self._counts))
        names = {name: self._kinds.column(position, kinds) for position, name in enumerate(_KINDS)}
        return wide(SCHEMA, "count", names | {"count": self._counts})


# Positions in a row of traits.
_MOVES, _IS_KEPT, _KEEPS_APPLICATION, _FROM, _TO = range(5)


def _last_of_each(transitions: pa.Table, rows: Longs) -> Longs:
    """The row with the greatest seq of each entity."""
    if not len(rows):
        return rows
    some = transitions.take(pa.array(rows))
    entity = codes(some.column("entity"))
    order = np.lexsort((longs(some, "seq"), entity))
    is_last = np.concatenate((entity[order][1:] != entity[order][:-1], [True]))
    return rows[order[is_last]]
