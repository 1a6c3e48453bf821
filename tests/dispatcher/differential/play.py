"""Play scripts on the tree that PYTHONPATH leads to, with its own Stage: PYTHONPATH=TREE python play.py SEED...

Prints where that dispatcher is, then a JSON line for each seed: what is seen after each step.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from script import make_script

import dispatcher
from dispatcher import Retry, ServiceState
from dispatcher.journal import EVENTS, read_rows
from dispatcher.mailbox import RejectedExecutionError
from tests.dispatcher.stage import Stage
from tests.kit import until

SEED_TIMEOUT_S = 60
LOOKS = ("seen_at", "attempts", "letters", "posted", "later", "answers", "cancelled", "due", "mails", "dues", "state")
LOOKS += ("failure", "is_drained", "is_stopped", "accepted", "in_hand", "queue_size", "retrying", "scheduled_fired")
LOOKS += ("scheduled_skipped", "discarded_by_reason", "rejected", "handled_by_type", "failed_by_type")
COLUMNS = ("event_type", "outcome", "error", "payload", "redelivered")


class Player:
    """Plays one script. Before each step the dispatcher is at rest, so what is seen does not depend on timing."""

    def __init__(self, script: dict[str, Any], folder: Path) -> None:
        self.script = script
        self.is_held = False
        on_error = script["on_error"]
        if on_error in ("retry", "ordered"):
            ordered = on_error == "ordered"
            on_error = Retry(3, delay_s=0.907, jitter=0.0, then=script["then"], ordered_by_key=ordered)
        self.stage = Stage(
            fails={int(number): count for number, count in script["fails"].items()},
            then=self.act,
            on_error=on_error,
            coalesce_by=(lambda event: event.lock_key) if script["coalesces"] else None,
            journal=folder / "journal" if script["journal"] else None,
            writer={"write_ahead": script["journal"] == "write_ahead", "durability": "none"},
            **script["options"],
        )

    def act(self, event: Any) -> int:
        """What a handler does."""
        if action := self.script["actions"].get(str(event.number)):
            self.stage.play(*action.split())
        return int(event.number)

    def play(self) -> list[dict[str, Any]]:
        seen = []
        for step in self.script["steps"]:
            self.step(*step.split())
            seen.append({"step": step, **{what: self.look(what) for what in LOOKS}})
        self.stage.close()
        return [*seen, {"step": "close", "rows": self.rows()}]

    def look(self, what: str) -> list[str]:
        seen = list(map(str, self.stage.look(what)))
        # A handler notes what it did before or after the thread that posted its event does.
        return sorted(seen) if what in ("posted", "answers", "due") else seen

    def step(self, verb: str, *words: str) -> None:
        stage, has_stopped = self.stage, self.stage.dispatcher.state is ServiceState.STOPPED
        if verb in ("hold", "begin") and has_stopped:
            return
        self.is_held = verb != "release" and (self.is_held or verb == "hold")
        if verb.startswith("+"):
            self.advance(int(verb[1:]))
        else:
            if verb == "crash" and self.journal is not None and not has_stopped:
                self.journal.flush_to_disk(amid_event=True)  # otherwise its own thread does, at some moment
            try:
                stage.play(verb, *words)
            except (KeyError, AttributeError, RejectedExecutionError):  # there is nothing to cancel, or it has stopped
                assert verb in ("cancel", "mail")
        if stage.dispatcher.state is not ServiceState.INITED:
            self.advance(0)

    def advance(self, ms: int) -> None:
        """To one timer after another; what they post is handled once all that are due have fired."""
        clock = self.stage.clock
        end_ms = clock.current_processing_time() + ms
        is_over, dispatcher = False, self.stage.dispatcher
        while not is_over and dispatcher.state is not ServiceState.STOPPED:
            self.rest()
            next_ms = clock.next_timer_ms()
            is_over = next_ms is None or next_ms > end_ms
            self.advance_to(end_ms if next_ms is None or is_over else next_ms)
            self.rest()
        if dispatcher.state is ServiceState.STOPPED:
            self.let_end()

    def advance_to(self, to_ms: int) -> None:
        if not self.is_held:
            with suppress(RejectedExecutionError):  # it has stopped
                self.stage.hold()
        self.stage.clock.advance(max(0, to_ms - self.stage.clock.current_processing_time()))
        if not self.is_held:
            self.stage.release()

    def let_end(self) -> None:
        """It stops: time goes on to what the drain waits for."""
        self.is_held = False
        while not self.stage.dispatcher.is_stopped():
            self.rest()
            next_ms = self.stage.clock.next_timer_ms()
            if next_ms is not None and self.stage.dispatcher.stats().retrying:
                self.advance_to(next_ms)

    @property
    def journal(self) -> Any:
        return self.stage.dispatcher.core.journal

    def rest(self) -> None:
        for _ in range(2):  # what comes out of the log is handled
            until(self.is_log_at_rest, "the thread of the log rests")
            if not self.is_held:
                self.stage.release()

    def is_log_at_rest(self) -> bool:
        """No event is on its way into the log, and the thread that brings them there waits for the next one.

        Nothing public tells the latter, and it schedules the next attempt at an event as its last act. But its stack
        does: that thread waits in its outermost function, and works in others.
        """
        if self.journal is None:
            return True
        frames, name = sys._current_frames(), f"write-ahead-{self.journal.path.name}"
        log = [frames.get(thread.ident or 0) for thread in threading.enumerate() if thread.name == name]
        return not self.journal.under_way and all(frame and frame.f_code.co_name == "_run" for frame in log)

    def rows(self) -> list[Any]:
        folder = self.stage._journal
        rows = read_rows(folder, EVENTS) if folder is not None else ()
        return [[row.get(name) for name in COLUMNS] for row in rows]


def main(seeds: list[int]) -> None:
    print(json.dumps(dispatcher.__file__))
    logging.disable(logging.CRITICAL)
    gc.disable()  # CPython 3.11 may hang if it collects garbage while it reads all frames (python/cpython#106883)
    for seed in seeds:
        faulthandler.dump_traceback_later(SEED_TIMEOUT_S, exit=True)
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(Player(make_script(seed), Path(folder)).play()), flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(list(map(int, sys.argv[1:])))
