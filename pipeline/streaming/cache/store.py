"""What a cache keeps, and the statements that keep it, for both databases.

A key has one entry. It is `UNDER_WAY` from before its call until the call has ended, and `DONE` from then on. A call
that failed leaves no entry. An entry that is in flight and whose owner has ended, or that is `CUT_OFF`, belongs to a
call whose outcome is unknown.

An owner is one open store: a process, or one of several hosts in it. The database knows which of them live, by a lock
that ends with the process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.util.sqlite import or_update
from pipeline.sql import Dialect
from pipeline.streaming.errors import ResultCacheError

UNDER_WAY: Final = 0
DONE: Final = 1
CUT_OFF: Final = 2
FORMAT: Final = 1
"""Of the table; a file or a table of another format is refused."""
_STEP_KEYS: Final = 400
"""Maximum keys of one statement: older versions of SQLite take 999 parameters."""
_MINE: Final = "{mark}, {mark}, {mark}, {mark}"  # function, state, owner, at

CREATE: Final = """
    CREATE TABLE IF NOT EXISTS {table} (
        digest {octets} PRIMARY KEY,
        function TEXT NOT NULL,
        state {whole} NOT NULL,
        owner TEXT NOT NULL,
        at {real} NOT NULL,
        key TEXT,
        value {octets}
    )
"""
_STATEMENTS: Final = {
    "read": "SELECT digest, state, owner, at, value FROM {table} WHERE digest {is_given}",
    "claim": f"""
        {{given}} INSERT INTO {{table}} AS kept (digest, key, function, state, owner, at)
        SELECT digest, key, {_MINE} FROM given WHERE true ORDER BY digest
        {or_update(["digest"], ["function", "state", "owner", "at", "key"])}, value = NULL
        WHERE (kept.digest, kept.state, kept.owner, kept.at) IN (SELECT digest, state, owner, at FROM given)
        {{returning}}
    """,
    "finish": f"""
        {{given}} INSERT INTO {{table}} (digest, value, function, state, owner, at)
        SELECT digest, value, {_MINE} FROM given WHERE true ORDER BY digest
        {or_update(["digest"], ["state", "owner", "at", "value"])}, key = NULL
    """,
    "release": f"DELETE FROM {{table}} WHERE digest {{is_given}} AND state = {UNDER_WAY} AND owner = {{mark}}",
    "cut_off": f"""
        UPDATE {{table}} SET state = {CUT_OFF} WHERE digest {{is_given}} AND state = {UNDER_WAY} AND owner = {{mark}}
    """,
    "unfinished": f"SELECT digest, function, key, at, state, owner FROM {{table}} WHERE state <> {DONE} ORDER BY at",
    "forget": f"DELETE FROM {{table}} WHERE digest {{is_given}} AND state <> {DONE}",
    "remove": f"DELETE FROM {{table}} WHERE state = {DONE} AND at <= {{mark}}",
}
_GIVEN: Final[Mapping[str, Mapping[str, str]]] = {
    "claim": {"digest": "bytea[]", "key": "text[]", "state": "smallint[]", "owner": "text[]", "at": "float8[]"},
    "finish": {"digest": "bytea[]", "value": "bytea[]"},
}
"""The columns of `given` in statements that take more than digests, with PostgreSQL's types for arrays of them."""


@dataclass(frozen=True, slots=True)
class ResultKey:
    """A key: what the store knows it by, and its text for people."""

    digest: bytes
    text: str


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """What a store has for a key. `at`: Unix seconds, when the call began, or when it ended if it is DONE."""

    state: int
    owner: str
    at: float
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A wish to make the call of a key, for which the store had `seen` a moment ago."""

    key: ResultKey
    seen: CacheEntry | None


@dataclass(frozen=True, slots=True)
class UnknownCall:
    """A call whose outcome is unknown. `key`: the text of its key, truncated; `began_at`: Unix seconds."""

    function: str
    key: str
    began_at: float


class ResultStore(ABC):
    """One owner's access to the entries of one function. One thread at a time; every method blocks.

    `owner`: the name of this owner; no other has it, now or later. `where`: the beginning of messages.

    Raises:
        ResultCacheAwayError: worth a retry of the whole step, which is harmless. ResultCacheError: a retry is useless.
    """

    def __init__(self, dialect: Dialect, table: tuple[str, ...], function: str, where: str, owner: str) -> None:
        self.owner = owner
        self._where = where
        self._function = function
        self._dialect = dialect
        self._words = {
            "table": dialect.quoted(*table),
            "mark": dialect.mark,
            "octets": dialect.octets,
            "whole": dialect.whole,
            "real": dialect.real,
            "returning": dialect.returning,
        }
        self._texts: dict[tuple[str, int], str] = {}  # statements, by name and number of rows

    def step(self) -> AbstractContextManager[None]:
        """Around the writes and claims of one moment, so that a store can commit them together."""
        return nullcontext()

    def read(self, digests: Sequence[bytes]) -> Mapping[bytes, CacheEntry]:
        """The entries there are."""
        found: dict[bytes, CacheEntry] = {}
        for some in _pieces([(digest,) for digest in digests]):
            rows, _ = self._run("read", some)
            found.update((digest, CacheEntry(*entry)) for digest, *entry in rows)
        return found

    def claim(self, claims: Sequence[Claim], now_s: float) -> set[bytes]:
        """Mark calls as in flight, by this owner. A claim succeeds if the store has what was seen, or no entry at all.

        The keys of `claims` are distinct. Returns the digests of the claims that succeeded.
        """
        rows = []
        for claim in claims:
            seen = (None, None, None) if claim.seen is None else (claim.seen.state, claim.seen.owner, claim.seen.at)
            rows.append((claim.key.digest, claim.key.text, *seen))
        mine = (self._function, UNDER_WAY, self.owner, now_s)
        if self._dialect.returning:
            return {digest for some in _pieces(rows) for (digest,) in self._run("claim", some, *mine)[0]}
        return {row[0] for row in rows if self._run("claim", [row], *mine)[1]}

    def finish(self, results: Sequence[tuple[bytes, bytes]], now_s: float) -> None:
        """Make the entries of these keys DONE, with their results."""
        self._change("finish", list(dict(results).items()), self._function, DONE, self.owner, now_s)

    def release(self, digests: Sequence[bytes]) -> None:
        """Remove the entries that this owner has in flight for these keys: the calls have failed."""
        self._change("release", [(digest,) for digest in digests], self.owner)

    def cut_off(self, digests: Sequence[bytes]) -> None:
        """Mark the entries that this owner has in flight for these keys: the calls were given up."""
        self._change("cut_off", [(digest,) for digest in digests], self.owner)

    def unknown(self) -> list[UnknownCall]:
        """The calls of all functions whose outcome is unknown, the oldest first."""
        return [UnknownCall(function, key or "", at) for _, function, key, at in self._unknown()]

    def forget_unknown(self) -> int:
        """Remove their entries; return their number."""
        with self.step():
            return self._change("forget", [(digest,) for digest, *_ in self._unknown()])

    def remove_older(self, stored_before_s: float) -> int:
        """Remove the results of all functions that are older; return their number."""
        _, count = self._run("remove", (), stored_before_s)
        return count

    @abstractmethod
    def alive(self, owners: Collection[str]) -> set[str]:
        """Those of the owners that have not ended."""

    @abstractmethod
    def close(self) -> None:
        """End this owner. Called once."""

    @abstractmethod
    def _execute(self, text: str, parameters: Sequence[Any]) -> tuple[list[tuple[Any, ...]], int]:
        """The rows of a statement, if it has any, and how many it has changed."""

    def _run(self, name: str, rows: Sequence[Sequence[Any]], *others: Any) -> tuple[list[tuple[Any, ...]], int]:
        dialect, number = self._dialect, len(rows)
        text = self._texts.get((name, number))
        if text is None:
            given = dialect.given(_GIVEN[name], number) if name in _GIVEN else ""
            text = _STATEMENTS[name].format(given=given, is_given=dialect.is_given(number), **self._words)
            if number <= 1:  # other numbers are too many to keep
                self._texts[name, number] = text
        return self._execute(text, [*dialect.parameters(rows), *others])

    def _change(self, name: str, rows: Sequence[Sequence[Any]], *others: Any) -> int:
        return sum(self._run(name, some, *others)[1] for some in _pieces(rows))

    def _unknown(self) -> list[tuple[bytes, str, str | None, float]]:
        rows, _ = self._run("unfinished", ())
        alive = self.alive({owner for *_, owner in rows})
        return [(*entry,) for *entry, state, owner in rows if state == CUT_OFF or owner not in alive]

    def _check_format(self, what: str, found: object, remedy: str) -> None:
        if str(found) != str(FORMAT):
            raise ResultCacheError(
                f"{self._where}: the {what} has the format {found}, and this version reads the format {FORMAT}. "
                f"{remedy}; then its calls are made again."
            )


def _pieces(rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Sequence[Any]]]:
    for start in range(0, len(rows), _STEP_KEYS):
        yield rows[start : start + _STEP_KEYS]
