"""The counters that one thread writes and any thread reads."""

from __future__ import annotations

import threading

from dispatcher import AsyncDispatcher, DispatcherConfig, DispatcherStats

from ...kit import Numbered, Work


def test_the_handler_thread_takes_the_snapshot_between_two_events() -> None:
    seen: list[DispatcherStats] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            seen.append(dispatcher.stats())

    dispatcher = AsyncDispatcher(DispatcherConfig(batch_size=7))
    dispatcher.register(Work, lambda event: None)
    with dispatcher:
        looking = threading.Thread(target=look)
        looking.start()
        for number in range(5_000):
            dispatcher.post(Numbered(number))
        assert dispatcher.await_drained(60)
        is_over.set()
        looking.join()

    accepted = [each.accepted for each in seen]
    assert accepted == sorted(accepted)
    assert all(each.in_hand == 0 or each.handled < 5_000 for each in seen)
