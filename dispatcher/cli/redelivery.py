"""Redelivering unhandled events or dead letters of a journal, by a dispatcher made here or by a running daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.cli.imported import described, imported
from dispatcher.errors import ConfigError, DispatcherError, JournalError
from dispatcher.groups import MultiDispatcher
from dispatcher.journal.format.event_codec import marks_of
from dispatcher.journal.format.outstanding import Accepted
from dispatcher.journal.format.segments import read_manifest
from dispatcher.journal.partitioned import PartitionedJournal
from dispatcher.journal.read import read_unhandled
from dispatcher.journal.snapshot import config_to_continue, parts_of
from dispatcher.journal.writer import JournalWriter
from dispatcher.letter_target import MOST_AT_ONCE, LetterTarget, line_of
from dispatcher.util.terminal import one_line

if TYPE_CHECKING:
    from dispatcher.cli.failed import FailedEvent
    from dispatcher.cli.ops.client import Client

_LONGEST_REPR: Final = 200
_LOOK_S: Final = 0.1
_LONGEST_WAIT_S: Final = 10.0
"""The longest wait for the next attempt at an event."""


class RedeliveredEvents(NamedTuple):
    """What became of a journal's unhandled events: how many of each."""

    handled: int
    failed: int
    left: int
    scheduled: int
    """The time of their post or of their next attempt has not come. They stay in the journal, for its next start."""


def redeliver(path: Path, factory: str) -> RedeliveredEvents:
    """Make a dispatcher with `factory` (`module:function`), drain it, and stop it. The function is called with a
    JournalWriter or, for a partitioned journal, with a PartitionedJournal. Blocks while handlers run, and for up to 10
    seconds until the next attempt at an event.

    Raises:
        ConfigError: the function does not exist or raises, or does not return a dispatcher with that journal.
        JournalError: the journal cannot be written, or has an event whose class the dispatcher does not declare.
    """
    make, found = _load(factory), parts_of(path)
    config = config_to_continue(path)
    journal = PartitionedJournal(path, config) if found.is_partitioned else JournalWriter(path, config)
    try:
        dispatcher, parts = _made(make, factory, journal)
        started_ns = parts[0].core.schedule.unix_now_ns()
        for part in parts:
            part.core.schedule.resumes = False  # rhythms are the daemon's
        with dispatcher:
            _drain(dispatcher, parts)
    finally:
        journal.close()
    left = [each for folder in parts_of(path).folders for each in read_unhandled(folder).events]
    return _ended(parts, left, started_ns)


def redeliver_letters(folder: Path, chosen: Set[int], factory: str) -> RedeliveredEvents:
    """Redeliver the dead letters with these accepted seqs, from one dispatcher's folder of dead letters. Others stay.

    An event that fails again is a dead letter again. The dispatcher that the function makes keeps it if it was given
    `dead_letters`; otherwise the folder does. Events that an earlier, interrupted call left unhandled are handled too.
    """
    make = _load(factory)

    def is_due(accepted: Accepted) -> bool:
        return accepted.seq in chosen or marks_of(accepted.line).died is None

    journal = JournalWriter(folder, config_to_continue(folder))
    try:
        journal.recovered = tuple(filter(is_due, journal.recovered))
        dispatcher, [part] = _made(make, factory, journal)
        errors, codec = part.core.errors, part.core.queue.write_ahead
        if errors.dead_letters is None:
            # The new line is in the journal before the row that says that the old one has failed.
            errors.dead_letters = LetterTarget(
                part.name,
                lambda letter: journal.append_accepted(line_of(letter, codec)),
                codec,
                part.core.queue.post_with,
            )
        started_ns = part.core.schedule.unix_now_ns()
        with dispatcher:
            _drain(dispatcher, (part,))
    finally:
        journal.close()
    return _ended((part,), filter(is_due, read_unhandled(folder).events), started_ns)


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
    from dispatcher.cli.ops.errors import NotThereError
    from dispatcher.ops.changes import Redelivered

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


def _drain(dispatcher: AsyncDispatcher | MultiDispatcher, parts: Iterable[AsyncDispatcher]) -> None:
    """Wait until what is due has been handled. Attempts that are due much later stay in the journal."""
    while not dispatcher.await_drained(_LOOK_S):
        if all(part.is_drained() or _waits_for_an_attempt(part) for part in parts):
            dispatcher.set_drain_events_on_stop(False)
            return


def _waits_for_an_attempt(part: AsyncDispatcher) -> bool:
    """Whether nothing is left but events whose attempts are due much later, and those behind them."""
    core, stats = part.core, part.stats()
    is_left = stats.retrying and not (stats.queue_size or stats.in_hand or core.queue.shutdown.under_way)
    return bool(is_left) and core.retries.next_attempt_s() > _LONGEST_WAIT_S


def _ended(parts: Iterable[AsyncDispatcher], left: Iterable[Accepted], started_ns: int) -> RedeliveredEvents:
    """`started_ns`: Unix ns; what is due later is scheduled."""
    stats = [part.stats() for part in parts]
    marks = [marks for each in left if (marks := marks_of(each.line)).has_event]
    scheduled = sum(each.due_ns > started_ns for each in marks)
    handled, failed = sum(each.handled for each in stats), sum(each.failed for each in stats)
    return RedeliveredEvents(handled, failed, len(marks) - scheduled, scheduled)


def _made(
    make: Callable[[Any], Any], factory: str, journal: JournalWriter | PartitionedJournal
) -> tuple[AsyncDispatcher | MultiDispatcher, tuple[AsyncDispatcher, ...]]:
    """The dispatcher that the function makes, and its parts. Raises ConfigError: it does not make one."""
    try:
        dispatcher = make(journal)
    except DispatcherError:
        raise
    except Exception as error:
        raise ConfigError(f"--with {factory}: the function raised {described(error)}") from error
    if isinstance(dispatcher, MultiDispatcher) and dispatcher.journal is journal:
        return dispatcher, dispatcher.partitions
    if isinstance(dispatcher, AsyncDispatcher) and dispatcher.core.journal is journal:
        return dispatcher, (dispatcher,)
    wanted = "a MultiDispatcher" if isinstance(journal, PartitionedJournal) else "an AsyncDispatcher"
    raise ConfigError(
        f"{factory}: should return {wanted}(journal=journal) with the journal it was given, "
        f"not yet started; it returned {_shown(dispatcher)}"
    )


def _load(factory: str) -> Callable[[Any], Any]:
    made = imported(factory, f"--with {factory}", "function")
    if not callable(made):
        name, _, function = factory.partition(":")
        raise ConfigError(f"--with {factory}: {name} has no function {function}")
    return made  # type: ignore[no-any-return]


def _shown(value: object) -> str:
    try:
        return one_line(repr(value), _LONGEST_REPR)
    except Exception as error:
        return f"a {type(value).__name__}, whose repr raises {type(error).__name__}"


def _id_of(folder: Path) -> str:
    manifest, problem = read_manifest(folder)
    if manifest is None or manifest.journal is None:
        raise JournalError(f"{folder}: its journal.json {problem or 'is missing, or has no id'}")
    return manifest.journal
