"""What administrators have done through the ops API and the pages: dead letters posted again or discarded, scheduled
posts cancelled, dispatchers stopped, and what has become of each part since.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar
from weakref import ref

from dispatcher.errors import JournalError
from dispatcher.letter_target import MOST_AT_ONCE, LetterFate, LettersElsewhereError, LetterTarget
from dispatcher.ops.answers import MOST_SEQ, Answer, Gets, Page, UnixMs, Whole, page_of
from dispatcher.ops.change_log import ChangesMade, KeptChange, Outcome
from dispatcher.service import ServiceState
from dispatcher.util.figures import counted
from dispatcher.util.foreign import describe, tell
from dispatcher.util.terminal import one_line
from dispatcher.util.threads import NO_THREAD
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.queries import number_in_path
from dispatcher.web.security import describe_write, user_of
from dispatcher.web.waiting import without_thread

if TYPE_CHECKING:
    from starlette.requests import Request

    from dispatcher.ops.shared import Ops
    from dispatcher.view import DispatcherView

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

LONGEST_KEY: Final = 1000


class RefusedLetter(Answer):
    """A dead letter that cannot be posted again, or that is not there."""

    letter: Whole
    reason: str


class Redelivered(Answer):
    """The answer to `POST /dispatchers/{name}/redeliver`. Letters in neither found no room."""

    posted: list[Whole]
    refused: list[RefusedLetter]
    change: Whole = 0
    """Its number in /changes."""


class Discarded(Answer):
    """The answer to `POST /dispatchers/{name}/discard`."""

    discarded: list[Whole]
    refused: list[RefusedLetter]
    change: Whole = 0


class RefusedKey(Answer):
    """A key whose scheduled post was not cancelled, or not for good."""

    key: str
    reason: str


class Cancelled(Answer):
    """The answer to `POST /dispatchers/{name}/cancel`."""

    cancelled: list[str]
    refused: list[RefusedKey]
    change: Whole = 0


class DispatcherStopping(Answer):
    """The answer to `POST /dispatchers/{name}/stop`."""

    stopping: str
    """The dispatcher, or the one of which it is a partition."""
    change: Whole = 0


class ChangeItem(Answer):
    """What became of one part of a change: of a letter, a key, a dispatcher."""

    name: str
    outcome: str
    detail: str = ""


class Change(Answer):
    """One of `/changes`."""

    number: Whole
    at: UnixMs
    user: str
    operation: str
    dispatcher: str
    items: list[ChangeItem]


def change_of(kept: KeptChange) -> Change:
    """One item of /changes. On a thread of its own: it looks at dispatchers."""
    now = [(name, *outcome()) for name, outcome in kept.outcomes]
    return Change(
        number=kept.number,
        at=kept.at_ms,
        user=kept.user,
        operation=kept.operation,
        dispatcher=kept.dispatcher,
        items=[ChangeItem(name=name, outcome=outcome, detail=detail) for name, outcome, detail in now],
    )


async def check_sight(ops: Ops, request: Request) -> None:
    """Raises Refusal (403): what is changed has ids, keys and errors, which the user of the request may not see."""
    if not (await ops.sight(request)).is_whole:
        raise Refusal(403, "changes are for administrators who may see everything")


async def last_changes(ops: Ops, request: Request) -> list[Change]:
    """The last changes, newest first. Raises Refusal (403)."""
    await check_sight(ops, request)
    return await ops.workers.run(lambda: [change_of(each) for each in ops.changes.newest_first()])


async def find_change(ops: Ops, request: Request) -> Change:
    """The one whose number the path has. Raises Refusal (403, 404)."""
    await check_sight(ops, request)
    kept = ops.changes.find(number_in_path(request, "number"))
    return await ops.workers.run(lambda: change_of(kept))


# -- what a request asks -----------------------------------------------------------------------------------------------


def letters_request(body: Any) -> tuple[list[int], str]:
    """The numbers of dead letters, and the id of their folder's journal. Raises Refusal (400)."""
    if not isinstance(body, Mapping) or body.keys() != {"letters", "journal"}:
        raise Refusal(400, 'the body must be an object: {"letters": [3, 17], "journal": "the id in journal.json"}')
    letters, journal = body["letters"], body["journal"]
    is_list = isinstance(letters, list) and len(letters) <= MOST_AT_ONCE
    if not is_list or not all(type(each) is int and 0 <= each <= MOST_SEQ for each in letters):
        raise Refusal(400, f"letters: expected at most {MOST_AT_ONCE} numbers")
    if not isinstance(journal, str):
        raise Refusal(400, "journal: expected the id in the folder's journal.json")
    return letters, journal


def keys_request(body: Any) -> list[str]:
    """The keys of scheduled posts. Raises Refusal (400)."""
    if not isinstance(body, Mapping) or body.keys() != {"keys"}:
        raise Refusal(400, 'the body must be an object: {"keys": ["reminder-17"]}')
    keys = body["keys"]
    is_list = isinstance(keys, list) and len(keys) <= MOST_AT_ONCE
    if not is_list or not all(isinstance(each, str) and 0 < len(each) <= LONGEST_KEY for each in keys):
        raise Refusal(400, f"keys: expected at most {MOST_AT_ONCE} keys")
    return list(keys)


# -- changes: the loop's thread ----------------------------------------------------------------------------------------


async def redeliver(ops: Ops, request: Request, view: DispatcherView, numbers: list[int], journal: str) -> Redelivered:
    """Post dead letters again. Raises Refusal (409): the dispatcher does not run, or has not these letters."""
    return await _change(ops, request, view, f"redeliver {_named(numbers)}", _redeliver, numbers, journal)


async def discard(ops: Ops, request: Request, view: DispatcherView, numbers: list[int], journal: str) -> Discarded:
    """Remove dead letters for good. Raises Refusal, as `redeliver`."""
    return await _change(ops, request, view, f"discard {_named(numbers)}", _discard, numbers, journal)


async def cancel(ops: Ops, request: Request, view: DispatcherView, keys: list[str]) -> Cancelled:
    """Cancel what is scheduled under these keys. Raises Refusal (409): the dispatcher does not run."""
    return await _change(ops, request, view, f"cancel {', '.join(map(repr, keys))}", _cancel, keys)


async def stop(ops: Ops, request: Request, view: DispatcherView) -> DispatcherStopping:
    """Begin to stop the dispatcher, as its `stop` does. Raises Refusal (409): it does not run."""
    return await _change(ops, request, view, "stop the dispatcher", _stop)


async def _change(
    ops: Ops,
    request: Request,
    view: DispatcherView,
    operation: str,
    make: Callable[Concatenate[ChangesMade, str, DispatcherView, P], T],
    *args: P.args,
    **options: P.kwargs,
) -> T:
    """Make a change on a thread, for a user who may see everything, and name it in the audit log."""
    describe_write(request.scope, operation=operation, target=view.name)
    await check_sight(ops, request)
    return await ops.changes.run(partial(make, ops.changes, user_of(request), view, *args, **options))


def _named(numbers: Sequence[int]) -> str:
    return f"{counted(len(numbers), 'dead letter')}: {', '.join(map(str, numbers))}"


# -- their work: a thread of their own ---------------------------------------------------------------------------------


def _redeliver(changes: ChangesMade, user: str, view: DispatcherView, numbers: list[int], journal: str) -> Redelivered:
    try:
        found = _letters_of(view).redeliver(numbers, journal)
    except LettersElsewhereError as error:
        raise Refusal(409, str(error)) from error

    def outcome(number: int) -> Outcome:
        if number in found.posted:
            return partial(_fate, found.posted[number], ref(view))
        if number in found.refused:
            return partial(_said, "rejected", found.refused[number])
        return partial(_said, "left", "no room in the queue, or the dispatcher is stopping; the letter stays")

    change = changes.add(user, "redeliver", view.name, [(str(each), outcome(each)) for each in dict.fromkeys(numbers)])
    refused = [RefusedLetter(letter=number, reason=reason) for number, reason in found.refused.items()]
    return Redelivered(posted=list(found.posted), refused=refused, change=change)


def _fate(fate: LetterFate, view: ref[DispatcherView]) -> tuple[str, str]:
    if fate.outcome == "failed":
        return "failed again", fate.error
    if fate.outcome == "handled":
        return "handled", ""
    if fate.outcome or (now := view()) is None or not now.is_thread_alive():
        return "not handled", f"discarded: {fate.outcome or 'stop'}"
    return "posted", "not handled yet"


def _discard(changes: ChangesMade, user: str, view: DispatcherView, numbers: list[int], journal: str) -> Discarded:
    try:
        found = _letters_of(view).discard(numbers, journal)
    except LettersElsewhereError as error:
        raise Refusal(409, str(error)) from error
    wanted, missing = list(dict.fromkeys(numbers)), "no such dead letter"
    outcomes = [
        (str(each), partial(_said, "discarded", "") if each in found else partial(_said, "rejected", missing))
        for each in wanted
    ]
    return Discarded(
        discarded=[each for each in wanted if each in found],
        refused=[RefusedLetter(letter=each, reason=missing) for each in wanted if each not in found],
        change=changes.add(user, "discard", view.name, outcomes),
    )


def _cancel(changes: ChangesMade, user: str, view: DispatcherView, keys: list[str]) -> Cancelled:
    _check_runs(view)
    refused = {key: reason for key in dict.fromkeys(keys) if (reason := _not_cancelled(view, key))}
    outcomes = [
        (key, partial(_said, "rejected", refused[key]) if key in refused else partial(_said, "cancelled", ""))
        for key in dict.fromkeys(keys)
    ]
    return Cancelled(
        cancelled=[key for key in dict.fromkeys(keys) if key not in refused],
        refused=[RefusedKey(key=key, reason=reason) for key, reason in refused.items()],
        change=changes.add(user, "cancel", view.name, outcomes),
    )


def _not_cancelled(view: DispatcherView, key: str) -> str:
    """Cancel the post scheduled under the key. Returns why that failed, or ''."""
    try:
        return "" if view.cancel(key) else "nothing is scheduled under this key"
    except JournalError as error:
        return f"cancelled in this run only: {error}"


def _stop(changes: ChangesMade, user: str, view: DispatcherView) -> DispatcherStopping:
    _check_runs(view)
    whole = view.group.name if view.group is not None else view.name
    try:
        threading.Thread(target=_stop_now, args=(view,), name="ops-stop", daemon=True).start()
    except NO_THREAD as error:
        raise without_thread(error) from None
    change = changes.add(user, "stop", view.name, [(whole, partial(_stop_state, ref(view)))])
    return DispatcherStopping(stopping=whole, change=change)


def _stop_now(view: DispatcherView) -> None:
    try:
        view.stop()
    except Exception as error:
        tell(log, logging.ERROR, "%s: could not be stopped: %s", one_line(view.name), describe(error))


def _stop_state(view: ref[DispatcherView]) -> tuple[str, str]:
    now = view()
    if now is None:
        return "stopped", ""
    queued = f"{counted(now.stats().queue_size, 'event')} queued"
    return ("stopping" if now.is_thread_alive() else "stopped"), queued


def _letters_of(view: DispatcherView) -> LetterTarget:
    if view.dead_letters is None:
        raise Refusal(409, f"{view.name}: keeps no dead letters")
    _check_runs(view)
    return view.dead_letters


def _check_runs(view: DispatcherView) -> None:
    if view.state is not ServiceState.STARTED:
        raise Refusal(409, f"{view.name}: is {view.state.name}; only a dispatcher that runs can do this")


def _said(outcome: str, detail: str) -> tuple[str, str]:
    return outcome, detail


# -- endpoints ---------------------------------------------------------------------------------------------------------


async def _changes(ops: Ops, request: Request) -> Page[Change]:
    return page_of(request, await last_changes(ops, request))


ADMIN_GETS: Final[Gets] = {"/changes": _changes, "/changes/{number}": find_change}
