"""Dead letters in the ops API: a dispatcher's folder as a list with a search, and each letter with all its fields."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatcher.errors import JournalError
from dispatcher.journal.format.outstanding import Accepted
from dispatcher.letter_target import StoredLetter, read_letters
from dispatcher.ops.answers import MOST_SEQ, Gets, OfType, Page, UnixMs, Whole, event_name
from dispatcher.ops.letter_folders import FoundLetters
from dispatcher.ops.sight import WHOLE, Sight
from dispatcher.util.units import NS_PER_MS
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.queries import limit_of, number, number_in_path

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.ops.shared import Ops
    from dispatcher.view import DispatcherView

LONGEST_SEARCH: Final = 200


class Letter(OfType):
    """One of `/dispatchers/{name}/dead-letters`."""

    number: Whole
    at: UnixMs
    event_class: str = ""
    event_type: str = ""
    entity: str | None = None
    attempts: Whole = 0
    error: str = ""
    is_declared: bool = True
    """Its event can be posted again."""


class WholeLetter(Letter):
    """`/dispatchers/{name}/dead-letters/{number}`."""

    journal: str = ""
    traceback: str = ""
    event: Any = None


class Letters(Page[Letter]):
    """`/dispatchers/{name}/dead-letters`."""

    journal: str = ""
    """The id of the folder, for a redelivery."""
    damage: list[str] = []


def folder_of(view: DispatcherView) -> Path:
    """Where the dispatcher's dead letters are. Raises Refusal (404): in no folder."""
    folder = view.dead_letters.folder if view.dead_letters is not None else None
    if folder is None:
        raise Refusal(404, f"{view.name}: its dead letters are not in a folder")
    return folder


# -- choosing letters --------------------------------------------------------------------------------------------------


class Search:
    """What the user of a request looks for: letters that have each of some words, in what is shown of them."""

    def __init__(self, text: str = "", sight: Sight = WHOLE, *, shows_payloads: bool = False) -> None:
        self.sight = sight
        self.shows_payloads: bool = shows_payloads and sight.is_whole
        self._words = text[:LONGEST_SEARCH].lower().split()
        # Of a line in lower case; most letters are left out by them, without their JSON being read.
        self._needles = [_needle(word) for word in self._words]

    def matches(
        self, found: FoundLetters, below: int = MOST_SEQ, among: Container[int] | None = None
    ) -> Iterator[StoredLetter]:
        """The letters that match, and that are older than number `below`, newest first; only those `among` the numbers
        if these are given."""
        for each in found.newest_first:
            if each.seq < below and (among is None or each.seq in among) and self._can_match(each.line):
                letter = stored(each, found.folder)
                if self.sight.sees(letter.entity) and self._has_words(letter):
                    yield letter

    @property
    def is_everything(self) -> bool:
        return not self._words and self.sight.is_whole

    def _can_match(self, line: bytes) -> bool:
        if not self._needles:
            return True
        lower = line.lower()
        return all(needle.search(lower) for needle in self._needles)

    def _has_words(self, letter: StoredLetter) -> bool:
        if not self._words:
            return True
        shown = [str(letter.number), event_name(letter.event_class, letter.event_type), letter.entity or ""]
        if self.sight.is_whole:
            shown += [letter.error, letter.traceback]
        if self.shows_payloads:
            shown.append(json.dumps(letter.event, ensure_ascii=False))
        text = "\n".join(shown).lower()
        return all(word in text for word in self._words)


def _needle(word: str) -> re.Pattern[bytes]:
    """Finds a word in the lower-case bytes of a line, where other characters than ASCII are UTF-8 or JSON's escapes."""
    parts = []
    for char in word:
        variants = {char, char.upper(), char.lower()} if not char.isascii() else {char}
        texts = {json.dumps(each)[1:-1].encode().lower() for each in variants}
        texts |= {each.encode("utf-8", "surrogatepass") for each in variants if not each.isascii()}
        parts.append(b"(?:%s)" % b"|".join(map(re.escape, sorted(texts))) if len(texts) > 1 else re.escape(*texts))
    return re.compile(b"".join(parts))


def stored(accepted: Accepted, folder: Path) -> StoredLetter:
    """The letter of a line; one that cannot be read says so."""
    try:
        return next(read_letters([accepted], folder))
    except (JournalError, StopIteration) as error:
        reason = str(error) or "the line is no dead letter"
        return StoredLetter(
            folder, None, accepted.seq, "", "", "", None, accepted.at_ns, 0, reason, "", None, is_declared=False
        )


def find_letter(found: FoundLetters, number: int, sight: Sight = WHOLE) -> StoredLetter:
    """Raises Refusal (404)."""
    for each in found.newest_first:
        if each.seq == number:
            letter = stored(each, found.folder)
            if sight.sees(letter.entity):
                return letter
    raise Refusal(404, f"no dead letter {number}; it may have been redelivered or discarded")


def letter_items(letters: Iterable[StoredLetter], limit: int, sight: Sight = WHOLE) -> list[Letter]:
    """The first `limit` of these, as items of /dead-letters."""
    return [Letter(**_shown(each, sight)) for each in islice(letters, limit)]


def whole_letter(letter: StoredLetter, journal: str, search: Search) -> WholeLetter:
    """The answer of /dead-letters/{number}."""
    return WholeLetter(
        **_shown(letter, search.sight),
        journal=journal,
        traceback=letter.traceback if search.sight.is_whole else "",
        event=letter.event if search.shows_payloads else None,
    )


def _shown(letter: StoredLetter, sight: Sight) -> dict[str, Any]:
    names = ("number", "event_class", "event_type", "entity", "attempts", "is_declared")
    return {
        **{name: getattr(letter, name) for name in names},
        "at": letter.failed_ns // NS_PER_MS,
        "error": letter.error if sight.is_whole else letter.error.partition(":")[0],
    }


# -- endpoints ---------------------------------------------------------------------------------------------------------


async def _letters(ops: Ops, request: Request) -> Letters:
    view, limit, below = ops.view(request), limit_of(request), number(request, "after", MOST_SEQ, 0, MOST_SEQ)
    search = await search_of(ops, request)
    found = await ops.letters.read(folder_of(view))
    items = await ops.workers.run(lambda: letter_items(search.matches(found, below), limit + 1, search.sight))
    return Letters(
        items=items[:limit],
        next=str(items[limit - 1].number) if len(items) > limit else None,
        total=len(found.newest_first) if search.is_everything else None,
        journal=found.journal,
        damage=list(found.damage),
    )


async def _letter(ops: Ops, request: Request) -> WholeLetter:
    view, search, wanted = ops.view(request), await search_of(ops, request), number_in_path(request, "number")
    found = await ops.letters.read(folder_of(view))
    letter = await ops.workers.run(lambda: find_letter(found, wanted, search.sight))
    return whole_letter(letter, found.journal, search)


async def search_of(ops: Ops, request: Request) -> Search:
    text = request.query_params.get("search", "")
    return Search(text, await ops.sight(request), shows_payloads=ops.config.show_payloads)


GETS: Final[Gets] = {
    "/dispatchers/{name:path}/dead-letters": _letters,
    "/dispatchers/{name:path}/dead-letters/{number}": _letter,
}
