"""One call for all who want the outcome of a key at the same time.

`SingleFlight` says who makes the call of each key and who waits for it. It makes no calls and passes on no outcomes:
each of its owners does that in its own way.

| owner | thread | caller | after an error | after the leader gives up |
| the engine of a stream | the engine's | a record | all records get it | the next record calls again |
| a session of a result cache | the session's | a claim | the other claims are tried again | the same |
| a partial lookup cache | the host's loop | a query's task | all lookups get it | the query goes on |
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Caller = TypeVar("Caller", bound=Hashable)


class SingleFlight(Generic[Key, Caller]):
    """The keys with a call in flight: the leader, which makes it, and its followers. Its owner's thread only.

    Equal keys are one key, such as 1, 1.0 and True. A caller is any hashable object; it joins once. A leader ends by
    `end` or `abandon` of its key, which raise KeyError if no call for the key is in flight. A follower ends in the list
    of `end`, by `unjoin`, or by becoming the leader. `end` and `followers` take time in proportion to the list they
    return; the other methods take constant time.
    """

    __slots__ = ("_followers", "leaders")

    def __init__(self) -> None:
        self.leaders: dict[Key, Caller] = {}
        """By key, the caller that makes its call."""
        self._followers: dict[Key, dict[Caller, None]] = {}  # in order of arrival; of keys that have had any

    def follow(self, key: Key, caller: Caller) -> bool:
        """Have `caller` wait for the call of `key`; False if none is in flight."""
        if key not in self.leaders:
            return False
        followers = self._followers.get(key)
        if followers is None:
            self._followers[key] = {caller: None}
        else:
            followers[caller] = None
        return True

    def lead(self, keys: Iterable[Key], callers: Iterable[Caller]) -> None:
        """Each caller makes the call of its key, for which none is in flight."""
        self.leaders.update(zip(keys, callers, strict=True))

    def leader(self, key: Key) -> Caller:
        """The caller whose call the others of `key` share. Raises KeyError if no call is in flight."""
        return self.leaders[key]

    def followers(self, key: Key) -> list[Caller]:
        """The callers that wait for `key`, in order of arrival. Raises KeyError if no call is in flight."""
        self.leaders[key]
        return list(self._followers.get(key, ()))

    def end(self, key: Key) -> list[Caller]:
        """The call of `key` has ended, for better or worse; return the followers in order of arrival."""
        del self.leaders[key]
        return list(self._followers.pop(key, ()))

    def end_all(self, keys: Iterable[Key]) -> list[Caller]:
        """End the calls of those keys that have one in flight; return all their followers."""
        leaders, followers = self.leaders, self._followers
        if not followers:
            for key in keys:
                leaders.pop(key, None)
            return []
        return [caller for key in keys if key in leaders for caller in self.end(key)]

    def abandon(self, key: Key) -> Caller | None:
        """Give up the leader of `key`; return the follower that now leads and must make a new call, or None.

        Never `end` with an answer to the former leader's call: that would end the new leader's call.
        """
        followers = self._followers.get(key)
        if not followers:
            self.end(key)
            return None
        leader = self.leaders[key] = next(iter(followers))
        del followers[leader]
        return leader

    def unjoin(self, key: Key, caller: Caller) -> bool:
        """Stop waiting for `key`; return whether `caller` was waiting. False for a leader, which must `abandon`."""
        followers = self._followers.get(key)
        if followers is None or caller not in followers:
            return False
        del followers[caller]
        return True
