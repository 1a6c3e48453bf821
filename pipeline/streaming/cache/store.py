"""What a cache keeps, and what a database does for it.

A key has one entry. It is `UNDER_WAY` from before its call until the call has ended, and `DONE` from then on. A call
that failed leaves no entry. An entry that is under way and whose owner has ended, or that is `CUT_OFF`, belongs to a
call whose outcome is unknown.

An owner is one open store: a process, or one of several hosts in it. The database knows which of them live, by a lock
that ends with the process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

UNDER_WAY: Final = 0
DONE: Final = 1
CUT_OFF: Final = 2
FORMAT: Final = 1
"""Of the table; a file or a table of another format is refused."""
STEP_KEYS: Final = 500
"""The most keys of one query."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key: what the store knows it by, and its text for people."""

    digest: bytes
    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """What a store has for a key. `at`: Unix seconds, when the call began, or when it ended if it is DONE."""

    state: int
    owner: str
    at: float
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A wish to make the call of a key, for which the store had `seen` a moment ago."""

    key: Key
    seen: Entry | None


@dataclass(frozen=True, slots=True)
class UnknownCall:
    """A call whose outcome is unknown. `key`: the text of its key, truncated; `began_at`: Unix seconds."""

    function: str
    key: str
    began_at: float


class ResultStore(Protocol):
    """One owner's access to the entries of one function. One thread at a time; every method blocks.

    Raises:
        ResultCacheAwayError: worth a retry of the whole step, which is harmless. ResultCacheError: a retry is useless.
    """

    @property
    def owner(self) -> str:
        """The name of this owner; no other has it, now or later."""

    def step(self) -> AbstractContextManager[None]:
        """Around the writes and claims of one moment, so that a store can commit them together."""

    def read(self, digests: Sequence[bytes]) -> Mapping[bytes, Entry]:
        """The entries there are."""

    def claim(self, claims: Sequence[Claim], now_s: float) -> set[bytes]:
        """Make entries that are under way, by this owner, where the store still has what was seen; return those."""

    def finish(self, results: Sequence[tuple[bytes, bytes]], now_s: float) -> None:
        """Make the entries of these keys DONE, with their results."""

    def release(self, digests: Sequence[bytes]) -> None:
        """Remove the entries that this owner has under way for these keys: the calls have failed."""

    def cut_off(self, digests: Sequence[bytes]) -> None:
        """Mark the entries that this owner has under way for these keys: the calls were given up."""

    def alive(self, owners: Collection[str]) -> set[str]:
        """Those of the owners that have not ended."""

    def unknown(self) -> list[UnknownCall]:
        """The calls of all functions whose outcome is unknown, the oldest first."""

    def forget_unknown(self) -> int:
        """Remove their entries; return their number."""

    def remove_older(self, stored_before_s: float) -> int:
        """Remove the results of all functions that are older; return their number."""

    def close(self) -> None:
        """End this owner. Called once."""
