"""A subclass that has its own `post`. It was bypassed without a word: an attribute of the instance hid it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dispatcher import AsyncDispatcher, EventRefusedError, HasType, JournalConfig, JournalWriter, Retry
from dispatcher.testing import ManualClock

from ..kit import TIMEOUT_S, Work, until


@dataclass
class Order:
    type: Work
    number: int
    attempt: int = 1


class Audited(AsyncDispatcher):
    """Notes what is posted, and refuses the numbers in `refused`."""

    audited: list[int]
    refused: frozenset[int] = frozenset()

    def post(self, event: Any, /) -> bool:
        self.audited.append(event.number)
        return event.number not in self.refused and super().post(event)


@contextmanager
def auditing(journal: JournalWriter | None, handler: Callable[[Any], Any], **options: Any) -> Iterator[Audited]:
    dispatcher = Audited(name="audited", journal=journal, time_service=options.pop("clock", None))
    dispatcher.audited = []
    dispatcher.register(Work, handler, events=Order, **options)
    with dispatcher:
        yield dispatcher


@pytest.fixture(params=["memory", "write-ahead"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> JournalWriter | None:
    return JournalWriter(tmp_path, JournalConfig(write_ahead=True)) if request.param == "write-ahead" else None


def test_every_post_that_it_does_not_refuse_is_handled(journal: JournalWriter | None) -> None:
    handled: list[int] = []
    with auditing(journal, lambda event: handled.append(event.number)) as dispatcher:
        dispatcher.refused = frozenset({2})
        answers = [dispatcher.post(Order(Work.DO, number)) for number in (1, 2)]
        answers.append(dispatcher.event_handler.handle(Order(Work.DO, 3)))

    assert (answers, dispatcher.audited, handled) == ([True, False, True], [1, 2, 3], [1, 3])


def test_an_ask_goes_through_it_and_is_answered(journal: JournalWriter | None) -> None:
    with auditing(journal, lambda event: event.number * 10) as dispatcher:
        dispatcher.refused = frozenset({2})
        answer = dispatcher.ask(Order(Work.DO, 1)).result(TIMEOUT_S)
        refused = dispatcher.ask(Order(Work.DO, 2)).exception(TIMEOUT_S)

    assert (answer, dispatcher.audited) == (10, [1, 2])
    assert isinstance(refused, EventRefusedError)
    assert refused.reason == "post"


def test_further_attempts_go_through_it_and_are_made_even_if_it_refuses(journal: JournalWriter | None) -> None:
    """An event's own field `attempt` that happened to equal the number of the attempt was counted up."""
    attempts: list[int] = []

    def fail_twice(event: Order) -> None:
        assert event.attempt == 1
        attempts.append(dispatcher.attempt())
        dispatcher.refused = frozenset({1})
        if len(attempts) < 3:
            raise OSError

    with auditing(journal, fail_twice, on_error=Retry(on=OSError, delay_s=0, jitter=0)) as dispatcher:
        dispatcher.post(Order(Work.DO, 1))
        assert dispatcher.await_drained(TIMEOUT_S)

    assert (attempts, dispatcher.audited) == ([1, 2, 3], [1, 1, 1])


def test_timers_go_through_it(journal: JournalWriter | None) -> None:
    clock, handled = ManualClock(), list[int]()
    with auditing(journal, lambda event: handled.append(event.number), clock=clock) as dispatcher:
        dispatcher.post_after(1, Order(Work.DO, 1))
        dispatcher.post_every(2, Order(Work.DO, 2))
        clock.advance(2_000)
        until(lambda: len(handled) == 2)
        dispatcher.refused = frozenset({2})
        clock.advance(4_000)

    assert (dispatcher.audited, handled) == ([1, 2, 2, 2], [1, 2])


def test_it_may_post_another_event_and_others_besides() -> None:
    class Doubling(AsyncDispatcher):
        def post(self, event: HasType[Any], /) -> bool:
            return super().post(Order(Work.DO, 10)) and super().post(Order(Work.DO, 20))

    handled: list[int] = []
    with Doubling() as dispatcher:
        dispatcher.register(Work, lambda event: handled.append(event.number) or event.number)
        answer = dispatcher.ask(Order(Work.DO, 1)).result(TIMEOUT_S)
        assert dispatcher.await_drained(TIMEOUT_S)

    assert (answer, handled) == (10, [10, 20])


def test_a_mock_of_the_class_has_it_and_it_explains_itself() -> None:
    assert Mock(spec=AsyncDispatcher).post is not None
    assert AsyncDispatcher().post.__doc__ == AsyncDispatcher.post.__doc__
    assert "whether it was accepted" in (AsyncDispatcher.post.__doc__ or "")
