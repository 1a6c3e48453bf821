"""What a user sees of entities: the hook of an app whose users may not see all of them.

Whoever may not see everything gets only the entities that it may see: in lists, histories and rows of the journal. What
is about the daemon (rates, queues, running events) comes without ids, and failures without their messages, because
these can contain anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from dispatcher.web.plain_answers import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request

MaySee: TypeAlias = Callable[[str | None], bool]
"""Whether a user may see the entity with this id; None: everything, with payloads and messages. Any thread calls it."""
MaySeeOf: TypeAlias = "Callable[[Request], Awaitable[MaySee]]"
"""Who may see what, for the user of a request. It runs on the loop."""


class Sight:
    """What the user of one request sees. Any thread."""

    def __init__(self, may_see: MaySee | None = None) -> None:
        """None: everything."""
        self._may_see = may_see
        self.is_whole: bool = may_see is None or may_see(None)

    def sees(self, entity: str | None) -> bool:
        """Whether the entity is shown; None: not the id of one, or of all."""
        return self.is_whole or (entity is not None and self._may_see is not None and self._may_see(entity))

    def check(self, entity: str) -> None:
        """Raises Refusal (403)."""
        if not self.sees(entity):
            raise Refusal(403, f"you may not see the entity {entity!r}")


WHOLE: Final = Sight()
