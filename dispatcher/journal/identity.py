"""Which journal the files of a folder belong to: copies of two journals, made one over the other, leave a mixture."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from dispatcher.journal.format.segments import MANIFEST, Manifest, read_start, segment_number


class Identity(NamedTuple):
    """The journal of a folder, and what is not of it."""

    id: str | None
    """None: neither the manifest nor a segment has one."""
    foreign: Mapping[Path, str]
    """The segments of other journals, with their ids."""
    manifest_problem: str | None
    """The manifest is of another journal than the segments."""


def new_id() -> str:
    """An id for a journal that has none."""
    return str(uuid.uuid4())


def identify(manifest: Manifest | None, listed: Iterable[Path]) -> Identity:
    """Compare the ids of the manifest and of the segments; those without one belong to any journal.

    The manifest decides, unless all segments with an id contradict it. Then it is of another journal, as is each
    segment but those with the most frequent id, of equally frequent ones the newest segment's.

    A segment that is gone or cannot be read counts as one without an id.
    """
    ids = {segment: journal_of(segment) for segment in sorted(listed, key=segment_number)}
    counts = Counter(id for id in ids.values() if id is not None)
    own = manifest.journal if manifest is not None else None
    problem = None
    if counts and own not in counts:
        most = max(counts.values())
        actual = next(id for id in reversed(ids.values()) if id is not None and counts[id] == most)
        if own is not None:
            problem = f"{MANIFEST}: is of another journal, {own}; the segments are of {actual}"
        own = actual
    return Identity(own, {path: id for path, id in ids.items() if id is not None and id != own}, problem)


def journal_of(segment: Path) -> str | None:
    """The id in a segment's start. None: it cannot be read, is damaged, or was written by an earlier release."""
    try:
        id = read_start(segment).get("journal")
    except OSError:
        return None
    return id if isinstance(id, str) else None
