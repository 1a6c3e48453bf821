"""Stays of entities in their states, computed from a stream of transitions: a stateful streaming operator.

A stay ends with the transition that leaves its state, and began with an earlier one, perhaps in a much earlier
micro-batch. So the operator remembers the last change of state of each entity that is not in a final state. Entities
are hashed into a fixed number of slots, and Spark keeps state per slot: state per entity would cost a round trip of a
millisecond for each entity and micro-batch, while a slot costs one for thousands of entities.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StructType

SLOTS = 16
"""Fixed for the life of a checkpoint: with another number, entities would look for their past in another slot."""

Operator = Literal["transformWithState", "applyInPandasWithState"]
"""The stateful operator. A checkpoint of one cannot be continued with the other."""

_ENTITY = ["machine", "entity"]
_MEMORY_TYPES = {"machine": "object", "entity": "object", "seq": "int64", "state": "object", "at": "int64"}
_MEMORY = list(_MEMORY_TYPES)
# One string, because PySpark 4.3 cannot read arrays back from the state of applyInPandasWithState.
_STATE = "last_moves string"


class Taken(NamedTuple):
    """The result of `take_in`."""

    rows: pd.DataFrame
    """The transitions, with `entered_seq` and `stay_ns`."""
    memory: pd.DataFrame
    """What to remember for the next transitions."""


def no_memory() -> pd.DataFrame:
    """The memory before the first transition, without rows: machine, entity, seq, state (entered), at."""
    return _memory([[]] * len(_MEMORY))


def take_in(rows: pd.DataFrame, memory: pd.DataFrame, ends: frozenset[tuple[str, str]]) -> Taken:
    """Find the stay that each transition ends, given the memory of earlier transitions.

    A self-transition or a refused one ends no stay and is not remembered. A transition that arrives after later ones of
    its entity is returned like any other, but its stay is found only if the transition that began it arrives with it.

    rows:    journal transitions, in any order, each once.
    memory:  `Taken.memory` of the last call, or `no_memory()`.
    ends:    final (machine, state) pairs: entities that enter one are forgotten.
    Returns: the rows with entered_seq (Int64: seq of the transition that entered from_state) and stay_ns (Int64, >= 0:
             duration of the stay); both null if the transition ends no stay, or the journal lacks the stay's beginning.
    """
    unknown = pd.Series(pd.NA, index=range(len(rows)), dtype="Int64")
    rows = rows.reset_index(drop=True).assign(entered_seq=unknown, stay_ns=unknown)
    moves = rows.loc[rows["valid"] & (rows["from_state"] != rows["to_state"])]
    if moves.empty:
        return Taken(rows, memory)
    present = moves[[*_ENTITY, "seq", "from_state", "to_state", "at"]].assign(row=moves.index)
    past = memory.rename(columns={"state": "to_state"}).assign(from_state="", row=-1)
    line = present if past.empty else pd.concat([past, present], ignore_index=True)
    # Nullable integers: as floats, current times in ns would not be exact.
    line = line.astype({"seq": "Int64", "at": "Int64"})
    line = line.sort_values([*_ENTITY, "seq"], kind="stable", ignore_index=True)
    is_open = pd.Series(
        [state not in ends for state in zip(line["machine"], line["to_state"], strict=True)], dtype="boolean"
    )
    before = line.assign(is_open=is_open).groupby(_ENTITY, sort=False)[["seq", "to_state", "at", "is_open"]].shift()
    # A host that registers again is a new machine with the old id: no transition led to its NEW.
    ended = (line["row"] >= 0) & (before["to_state"] == line["from_state"]) & before["is_open"].fillna(False)
    rows.loc[line.loc[ended, "row"], "entered_seq"] = before.loc[ended, "seq"].array
    rows.loc[line.loc[ended, "row"], "stay_ns"] = (line["at"] - before["at"])[ended].clip(lower=0).array
    is_last = ~line.duplicated(_ENTITY, keep="last")
    last = line.loc[is_last & is_open].rename(columns={"to_state": "state"})
    return Taken(rows, last[_MEMORY].astype({"seq": "int64", "at": "int64"}))


def has_transform_with_state() -> bool:
    """Whether protobuf is installed, which PySpark's transformWithState needs."""
    try:
        return importlib.util.find_spec("google.protobuf") is not None
    except ModuleNotFoundError:  # not even the package `google`
        return False


def stays_schema(transitions: StructType) -> StructType:
    """The schema of `with_stays`, given the schema of its transitions."""
    return StructType([*transitions.fields]).add("entered_seq", LongType()).add("stay_ns", LongType())


def with_stays(transitions: DataFrame, ends: frozenset[tuple[str, str]], operator: Operator) -> DataFrame:
    """The stream of transitions with two additional columns from `take_in`: entered_seq and stay_ns, long.

    In:  a stream of journal transitions, each once.
    Out: the same rows, in any order, in append mode.
    """
    columns = transitions.columns
    schema = stays_schema(transitions.schema)
    slot = F.pmod(F.xxhash64(*_ENTITY), F.lit(SLOTS)).cast("int")
    slots = transitions.select(*columns, slot.alias("slot")).groupBy("slot")
    if operator == "transformWithState":
        return slots.transformWithStateInPandas(StayProcessor(columns, ends), schema, "Append", "None")

    def taken(_: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        known = state.get if state.exists else None
        rows, memory = take_in(pd.concat(list(frames))[columns], _decoded(known), ends)
        state.update(_encoded(memory))
        yield rows

    return slots.applyInPandasWithState(taken, schema, _STATE, "append", "NoTimeout")


class StayProcessor(StatefulProcessor):
    """`take_in` for transformWithState; the state of a slot is the memory of all its entities."""

    def __init__(self, columns: list[str], ends: frozenset[tuple[str, str]]) -> None:
        self._columns = columns
        self._ends = ends

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("memory", _STATE)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        taken = take_in(pd.concat(list(rows))[self._columns], _decoded(self._state.get()), self._ends)
        self._state.update(_encoded(taken.memory))
        yield taken.rows

    def close(self) -> None:
        pass


def _encoded(memory: pd.DataFrame) -> tuple[str]:
    return (json.dumps([memory[name].tolist() for name in _MEMORY], separators=(",", ":")),)


def _decoded(state: tuple[str] | None) -> pd.DataFrame:
    return no_memory() if state is None else _memory(json.loads(state[0]))


def _memory(columns: Iterable[list[Any]]) -> pd.DataFrame:
    typed = zip(_MEMORY_TYPES.items(), columns, strict=True)
    return pd.DataFrame({name: pd.Series(column, dtype=dtype) for (name, dtype), column in typed})
