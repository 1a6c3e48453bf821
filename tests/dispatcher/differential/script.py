"""Random scripts for the Stage of one dispatcher: its options, and what happens, in the verbs of `..stage`.

A script follows from its seed, and is JSON. Nothing here imports the dispatcher.
"""

from __future__ import annotations

from random import Random
from typing import Any

KEYS = "ab"
FINAL_MS = 20_000


def make_script(seed: int) -> dict[str, Any]:
    return _Maker(Random(seed)).make()


class _Maker:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.number = 0
        self.steps: list[str] = []
        self.fails: dict[str, int] = {}
        self.actions: dict[str, str] = {}
        """What the handler does with the event of a number, as a step."""
        self.is_held = self.is_stopping = False

    def make(self) -> dict[str, Any]:
        random = self.random
        self.options: dict[str, Any] = {
            "batch_size": random.choice([1, 2, 3, 256]),
            "drain_events_on_stop": random.random() < 0.6,
            "handler_warn_after_s": None,
        }
        if random.random() < 0.5:
            policy = random.choice(["block", "reject", "drop_oldest"])
            self.options |= {"queue_capacity": random.randint(1, 4), "queue_full_policy": policy}
            if policy == "block":
                self.options["queue_full_timeout_s"] = 0.001  # nothing makes room meanwhile
        self.on_error = random.choice(["continue", "stop", "retry", "retry", "ordered"])
        self.journal = random.choice([None, "plain", "write_ahead", "write_ahead"])
        self.coalesces = random.random() < 0.4
        is_started = random.random() < 0.7
        for number in range(random.randint(8, 30)):
            if not is_started and number == 4:
                self.steps.append("start")
            self.step(is_started or number >= 4)
        self.release()
        self.steps += [f"+{FINAL_MS}"]
        if self.journal == "write_ahead":
            self.steps += ["restart", f"+{FINAL_MS}"]
        return {
            "options": {**self.options, "is_started": is_started},
            "on_error": self.on_error,
            "then": random.choice(["dead_letter", "continue", "stop"]),
            "journal": self.journal,
            "coalesces": self.coalesces,
            "fails": self.fails,
            "actions": self.actions,
            "steps": self.steps,
        }

    def event(self, depth: int = 0) -> str:
        """A new event, which may fail a few times and then do something."""
        random = self.random
        self.number += 1
        number = str(self.number)
        if random.random() < (0.1 if self.on_error == "stop" else 0.25):
            self.fails[number] = random.choice([1, 1, 2, 9])
        if depth < 2 and random.random() < 0.3:
            after = ["after", str(random.choice([0, 700, 2000])), self.event(depth + 1)]
            post = [random.choice(["post", "nowait", "ask"]), self.event(depth + 1)]
            self.actions[number] = " ".join(random.choices([after, post, ["stop"]], [4, 8, 1])[0])
        return f"{number}:{random.choice(KEYS)}" if random.random() < 0.7 else number

    def step(self, is_started: bool) -> None:
        random = self.random
        makers: list[tuple[int, Any]] = [
            (10, lambda: f"{random.choice(['post', 'post', 'nowait', 'later', 'ask'])} {self.event()}"),
            (4, self.timer),
            (3, lambda: f"cancel {random.randint(1, max(1, self.number))}"),
            (1, lambda: f"drop {random.choice(KEYS)}"),
            (1, lambda: f"mail {self.number}"),
        ]
        if is_started:
            makers += [(5, lambda: f"+{random.choice([0, 1, 500, 1000, 2500, 7000])}")]
            makers += [(5, self.release if self.is_held else self.hold)]
            makers += [(1, self.start_again)] if self.journal == "write_ahead" else []
        made = random.choices([make for _, make in makers], [weight for weight, _ in makers])[0]()
        self.steps += [made] if made else []

    def timer(self) -> str:
        random = self.random
        key = random.choice(["", *(f" key={key}" for key in KEYS)])
        if random.random() < 0.3:
            event = self.event().partition(":")[0] + random.choice(["", ".."])
            return f"every {random.choice([1000, 2000])} {event}{key}{random.choice(['', ' first=0', ' first=500'])}"
        return f"{random.choice(['after', 'at'])} {random.choice([0, 1000, 1500, 5000])} {self.event()}{key}"

    def hold(self) -> None:
        """Keep the handler busy while events arrive, and sometimes begin a stop meanwhile."""
        random = self.random
        self.is_held = True
        self.number += 1
        # Its key is its own: no event of its key that is tried again makes it wait.
        self.steps.append(random.choice(["hold", f"hold {self.number}:{self.number}"]))
        if self.on_error in ("continue", "stop") and random.random() < 0.1:
            self.is_stopping = True
            self.steps.append("begin stop")

    def release(self) -> None:
        self.is_held = False
        self.steps.append("release")

    def start_again(self) -> None:
        self.release()
        self.steps += self.random.choice([["crash"], ["crash 5000"], [f"+{FINAL_MS}", "restart 500"]])
