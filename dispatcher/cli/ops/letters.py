"""Having a daemon post its dead letters again: the requests of `dispatcher journal redeliver --to`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dispatcher.cli.failed import FailedEvent
from dispatcher.cli.ops.client import Client
from dispatcher.cli.ops.errors import NotThereError
from dispatcher.errors import JournalError
from dispatcher.journal.format.segments import read_manifest
from dispatcher.letter_target import MOST_AT_ONCE
from dispatcher.ops.changes import Redelivered


class PostedAgain(NamedTuple):
    """What became of the letters. The others found no room."""

    posted: int
    refused: list[str]
    """A line for each."""


def post_again(client: Client, letters: Sequence[FailedEvent]) -> PostedAgain:
    """Have the dispatchers that had these events post them again. Letters of one that is not there are refused.

    Raises:
        DoorError: no answer, or a refusal; the letters of earlier requests were posted. NotThereError: the daemon has
            none of the dispatchers, or no controls. JournalError: a folder has no manifest.
    """
    chosen: dict[tuple[Path, str], list[FailedEvent]] = {}
    for each in letters:
        chosen.setdefault((each.folder, each.dispatcher), []).append(each)
    posted, refused, missing = 0, [], 0
    for (folder, dispatcher), of_one in chosen.items():
        journal_id = _id_of(folder)
        for first in range(0, len(of_one), MOST_AT_ONCE):
            some = {each.number: each for each in of_one[first : first + MOST_AT_ONCE]}
            content = {"letters": list(some), "journal": journal_id}
            try:
                found = client.post(Redelivered, "dispatchers", dispatcher, "redeliver", content=content)
            except NotThereError as error:
                missing += 1
                if missing == len(chosen):
                    raise
                refused += [f"{each.name}: {error}" for each in of_one[first:]]
                break
            posted += len(found.posted)
            refused += [f"{some[each.letter].name}: {each.reason}" for each in found.refused if each.letter in some]
            if len(found.posted) + len(found.refused) < len(some):
                break  # there is no room
    return PostedAgain(posted, refused)


def _id_of(folder: Path) -> str:
    manifest, problem = read_manifest(folder)
    if manifest is None or manifest.journal is None:
        raise JournalError(f"{folder}: its journal.json {problem or 'is missing, or has no id'}")
    return manifest.journal
