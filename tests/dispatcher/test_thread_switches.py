"""Where CPython lets signal handlers run, and that code without locks leaves them no other place.

With a GIL, other threads run at the same places. Without one they run anywhere, so for them only the order of the
accesses is tested. The tests read the bytecode of the Python that runs them, so they check each release.
"""

from __future__ import annotations

import ctypes
import dis
import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import compress, repeat, starmap
from types import CodeType
from typing import Any

import pytest

from dispatcher import AsyncDispatcher

QUIET = (
    "BINARY_OP",
    "BINARY_SUBSCR",
    "BUILD_TUPLE",
    "CACHE",
    "CHECK_EXC_MATCH",
    "COMPARE_OP",
    "COPY",
    "DELETE_FAST",
    "EXTENDED_ARG",
    "IS_OP",
    "JUMP_FORWARD",
    "LOAD_",
    "NOP",
    "NOT_TAKEN",
    "POP_",
    "PUSH_EXC_INFO",
    "PUSH_NULL",
    "STORE_ATTR",
    "STORE_FAST",
    "SWAP",
    "TO_BOOL",
    "UNPACK_SEQUENCE",
)
"""Beginnings of the instructions at which no other thread can run, on ints, tuples and slots. Calls, jumps back and the
beginning of a function look at the `eval_breaker` (Python/bytecodes.c; in 3.11, Python/ceval.c); these do not."""
LEAVES = ("JUMP_FORWARD", "JUMP_BACKWARD", "RETURN_", "RAISE_VARARGS", "RERAISE")
"""The instruction after these does not follow them."""


def dispatching() -> Any:
    return AsyncDispatcher()._dispatching


def queue() -> Any:
    return AsyncDispatcher(queue_capacity=1).core.queue


def is_quiet(instruction: dis.Instruction) -> bool:
    name = instruction.opname
    return name.startswith(QUIET) and not name.startswith("POP_JUMP_BACKWARD")


class Listing:
    """The instructions of a function; `name`: of one that it defines."""

    def __init__(self, function: Any, name: str | None = None) -> None:
        self._code: CodeType = function.__code__
        if name is not None:
            (self._code,) = [each for each in self._code.co_consts if getattr(each, "co_name", None) == name]
        self.all = list(dis.get_instructions(self._code))
        following: dict[int, list[dis.Instruction]] = {}
        for each, after in zip(self.all, [*self.all[1:], None], strict=True):
            if after is not None and not each.opname.startswith(LEAVES):
                following.setdefault(after.offset, []).append(each)
            if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
                following.setdefault(each.argval, []).append(each)
        self._before = following

    def at(self, line: str, *operations: str, of: str | None = None) -> list[dis.Instruction]:
        """The instructions of the only line that begins so, which are such operations, on the name `of`."""
        lines, start = inspect.getsourcelines(self._code)
        numbers = [start + index for index, text in enumerate(lines) if text.strip().startswith(line)]
        found = [
            each
            for each in self.all
            if each.positions is not None
            and each.positions.lineno in numbers
            and each.opname.startswith(operations)
            and of in (None, each.argval)
        ]
        assert found, (self._code.co_qualname, line)
        return found

    def leading_to(self, end: dis.Instruction, *, since: list[dis.Instruction]) -> list[dis.Instruction]:
        """All that can run before `end`, after `since` or after the exception by which an `except` clause begins."""
        offsets = {each.offset for each in since}
        found: dict[int, dis.Instruction] = {}
        left = [end]
        while left:
            for each in self._before.get(left.pop().offset, ()):
                if each.offset not in offsets and each.offset not in found:
                    found[each.offset] = each
                    left.append(each)
        return list(found.values())

    def accesses(self) -> list[str]:
        """Attributes in the order of their loads and stores."""
        return [
            f"{'store' if each.opname.startswith('STORE') else 'load'} {each.argval}"
            for each in self.all
            if each.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"))
        ]


# -- the model: where this Python looks for other threads --------------------------------------------------------------


class Interrupted(BaseException):
    """Raised in this thread at the next place where Python looks, as another thread would run there."""


_interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc
_interrupt.argtypes = [ctypes.c_ulong, ctypes.py_object]


def arming(turns: Iterator[Any]) -> Iterator[Any]:
    """As `turns`; each step has this thread interrupted soon. All of a step is one call in C, as in the dispatcher."""
    return compress(turns, map(_interrupt, repeat(threading.get_ident()), repeat(Interrupted)))


def ended_by_jump(turns: Iterator[Any], pair: Any) -> None:
    for turn in turns:
        upto, rest = pair
        if turn is None and upto < 2:
            pair = (upto - 1, rest)


def ended_by_call(turns: Iterator[Any], pair: Any) -> None:
    for turn in turns:
        upto, rest = pair
        if turn is None:
            pair = (upto - 1, rest)
        abs(upto)


def ended_in_a_handler(turns: Iterator[Any], pair: Any) -> None:
    try:
        for _ in starmap(deque[Any]().popleft, turns):
            pass
    except BaseException as error:
        if pair is not None and error.__class__ is IndexError:
            upto, rest = pair
            pair = (upto - 1, rest)
            abs(upto)


@pytest.mark.parametrize("function", [ended_by_jump, ended_by_call, ended_in_a_handler])
def test_this_python_looks_for_other_threads_at_no_quiet_instruction(function: Callable[..., None]) -> None:
    listing = Listing(function)
    with pytest.raises(Interrupted) as caught:
        function(arming(repeat((), 1)), (1, ()))

    (step,) = [each for each in listing.all if each.opname == "FOR_ITER"]
    (stopped,) = [each for each in listing.all if each.offset == caught.traceback[-1]._rawentry.tb_lasti]
    assert not is_quiet(stopped)
    before = listing.leading_to(stopped, since=[step])
    assert [each for each in before if not is_quiet(each) and each.opname != "PRECALL"] == []  # a part of 3.11's calls


# -- sections into which no signal handler may come ------------------------------------------------------------------


def counted_once() -> tuple[Listing, list[dis.Instruction], list[dis.Instruction]]:
    """An event is counted as handled, until an exception would no longer count it as failed."""
    listing = Listing(dispatching()._dispatch_quickly)
    counts = [each for each in listing.all if each.opname == "STORE_ATTR" and each.argval == "handled"]
    assert len(counts) == 5
    return listing, counts, listing.at("event = None  # counted", "STORE_FAST")


def phase_advanced() -> tuple[Listing, list[dis.Instruction], list[dis.Instruction]]:
    listing = Listing(queue().shutdown._shut)
    looked = listing.at("if flags.phase < phase:", "LOAD_ATTR", of="phase")
    return listing, looked, listing.at("flags.phase = phase", "STORE_ATTR", of="phase")


def permit_used() -> tuple[Listing, list[dis.Instruction], list[dis.Instruction]]:
    """A bounded post has its permit, until it calls the append."""
    listing = Listing(queue()._make_post, "post_bounded")
    return listing, listing.at("take_permit()", "CALL"), listing.at("append(entry)", "CALL", "PRECALL")[:1]


SECTIONS: dict[str, Callable[[], tuple[Listing, list[dis.Instruction], list[dis.Instruction]]]] = {
    "an event is counted once": counted_once,
    "the phase never goes back": phase_advanced,
    "a permit is used": permit_used,
}


@pytest.mark.parametrize("section", SECTIONS)
def test_no_signal_handler_comes_into_a_section(section: str) -> None:
    listing, since, ends = SECTIONS[section]()
    within = [each for end in ends for each in listing.leading_to(end, since=since)]

    assert within
    assert [(each.opname, each.argval) for each in within if not is_quiet(each)] == []


def test_a_bounded_post_makes_nothing_between_its_permit_and_the_append() -> None:
    listing, since, (end,) = permit_used()

    assert [each for each in listing.leading_to(end, since=since) if each.opname.startswith(("BUILD_", "MAKE_"))] == []


# -- the order of the accesses that threads make without a lock --------------------------------------------------------

ORDERS: dict[str, tuple[Callable[[], Listing], list[str]]] = {
    "drained: `done` is read before the queue, `begun` after it": (
        lambda: Listing(AsyncDispatcher()._drain.is_drained),
        ["load under_way", "load done", "load has_events", "load begun"],
    ),
    "a batch is begun before its first event is taken, and done after its last one": (
        lambda: Listing(dispatching().__call__),
        ["store begun", "load _dispatch_quickly", "store done"],
    ),
    "a permit is returned before the look for a producer that waits": (
        lambda: Listing(queue().room.give_back),
        ["load permits", "load append", "load is_crowded"],
    ),
    "a producer lines up before it looks for a permit again": (
        lambda: Listing(queue().room._wait_and_take),
        ["load enter", "load is_open", "load try_take"],
    ),
}


@pytest.mark.parametrize("order", ORDERS)
def test_shared_fields_are_accessed_in_the_order_on_which_other_threads_rely(order: str) -> None:
    listing, expected = ORDERS[order]
    accesses = listing().accesses()

    places = iter(accesses)
    assert all(each in places for each in expected), accesses


@pytest.mark.parametrize("post", ["post", "post_stamped", "post_bounded"])
def test_a_post_reads_the_alert_after_the_append(post: str) -> None:
    listing = Listing(queue()._make_post, post)
    line = "append(event)" if post == "post" else "append(entry)"
    (alert,) = listing.at("if flags.alert:", "LOAD_ATTR", of="alert")

    assert listing.at(line, "CALL")[-1].offset < alert.offset
