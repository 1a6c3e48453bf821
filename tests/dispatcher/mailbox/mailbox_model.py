"""The rules of C2 of the reference without threads, locks and hints: what the real mailbox is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Letter(Protocol):
    """What a mailbox looks at in a mail."""

    priority: int
    original_priority: int

    @property
    def is_urgent(self) -> bool: ...


L = TypeVar("L", bound=Letter)


def effective(letter: Letter) -> int:
    return letter.priority


def original(letter: Letter) -> int:
    return letter.original_priority


class Pile(Generic[L]):
    """Urgent mail and the rest, each in the order in which it is to be taken."""

    def __init__(self) -> None:
        self.urgent: list[L] = []
        self.normal: list[L] = []

    def __bool__(self) -> bool:
        return bool(self.urgent or self.normal)

    def stored(self, *, newest_first: bool) -> list[L]:
        return [*(reversed(self.urgent) if newest_first else self.urgent), *self.normal]

    def remove(self, letter: L) -> None:
        (self.urgent if letter.is_urgent else self.normal).remove(letter)

    def clear(self) -> None:
        self.urgent, self.normal = [], []


def remove_first(pile: Pile[L], priority: int, of: Callable[[Letter], int]) -> L | None:
    """Remove and return the first mail whose priority is high enough."""
    for letter in pile.stored(newest_first=False):
        if of(letter) >= priority:
            pile.remove(letter)
            return letter
    return None


class MailboxModel(Generic[L]):
    """C2, for mail that is put by the mailbox thread (`owner`) or by another one."""

    def __init__(self) -> None:
        self.batch: Pile[L] = Pile()
        self.queue: Pile[L] = Pile()

    def put(self, letter: L, *, owner: bool, first: bool = False) -> None:
        if letter.is_urgent:
            to_batch = owner and self.batch and not self.batch.urgent and not self.queue.urgent
            (self.batch if to_batch else self.queue).urgent.append(letter)
        elif first:
            (self.batch if owner else self.queue).normal.insert(0, letter)
        else:
            self.queue.normal.append(letter)

    def pull(self, *, urgent_only: bool) -> None:
        if self.batch.urgent or (not self.queue.urgent and (self.batch or urgent_only)):
            return
        only_urgent = urgent_only and bool(self.batch)
        self.batch.urgent, self.queue.urgent = self.queue.urgent, []
        if not only_urgent:
            self.batch.normal += self.queue.normal
            self.queue.normal = []

    def take(self, priority: int, of: Callable[[Letter], int] = effective) -> L | None:
        self.pull(urgent_only=True)
        return remove_first(self.batch, priority, of) or self.take_after_wait(priority, of)

    def take_after_wait(self, priority: int, of: Callable[[Letter], int] = effective) -> L | None:
        return remove_first(self.queue, priority, of)

    def take_from_batch(self) -> L | None:
        self.pull(urgent_only=True)
        stored = self.batch.stored(newest_first=False)
        if not stored:
            return None
        self.batch.remove(stored[0])
        return stored[0]

    def drain(self) -> list[L]:
        drained = [*self.batch.stored(newest_first=False), *self.queue.stored(newest_first=True)]
        self.batch.clear()
        self.queue.clear()
        return drained

    def has(self, priority: int) -> bool:
        return any(letter.priority >= priority for letter in self.all())

    def all(self) -> list[L]:
        return [*self.batch.stored(newest_first=False), *self.queue.stored(newest_first=True)]
