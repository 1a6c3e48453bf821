"""Events that two producers hand over to a dispatcher that is idle, or about to be: none waits for the next one."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dispatcher import AsyncDispatcher

from ..kit import TIMEOUT_S, Numbered, Work, in_threads

RUNS = 20
WAKE_UPS = 10_000_000 // RUNS


def hand_over(wake_ups: int) -> None:
    """Each producer posts its next event once its last one is handled and the handler thread announces a wait."""
    handled = [0, 0]  # by producer; the handler thread writes, its producer reads
    dispatcher = AsyncDispatcher()

    def count(event: Any) -> None:
        handled[event.number] += 1

    dispatcher.register(Work, count)
    with dispatcher:
        is_waiting = dispatcher._mailbox.parking.is_waiting

        def produce(producer: int) -> None:
            event = Numbered(producer)
            for number in range(1, wake_ups // 2 + 1):
                assert dispatcher.post(event)
                looks, began_s = 0, time.monotonic()
                while handled[producer] < number or not is_waiting():
                    looks += 1
                    if looks > 20:  # let the handler thread have the processor
                        time.sleep(0)
                    if not looks % 10_000:
                        assert time.monotonic() - began_s < TIMEOUT_S, f"no thread was woken for event {number}"

        in_threads(lambda: produce(0), lambda: produce(1))
    assert handled == [wake_ups // 2] * 2


def test_no_wake_up_is_lost_between_two_producers() -> None:
    hand_over(4_000)


@pytest.mark.minutes
@pytest.mark.parametrize("run", range(RUNS))
def test_no_wake_up_is_lost_in_ten_million(run: int) -> None:
    hand_over(WAKE_UPS)
