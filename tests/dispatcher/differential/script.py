"""Random scripts for a dispatcher: what is configured, which events there are, and what happens step by step.

A script follows from its seed. It says nothing of what comes out. It leaves out what depends on timing: of `async def`
handlers of several keys, only the order within a key is fixed, so their children, attempts and bounds are not combined.
Nothing here imports the dispatcher.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

KEYS = ("a", "b", "c")
TIMER_KEYS = ("x", "xy", "z")
RETRYING = ("retry", "ordered", "callable")
FACTORY_FROM = 10_000
"""Events that the factories of `post_every` make have numbers from here on, and no actions."""


@dataclass
class Config:
    """How each dispatcher of a script is made."""

    capacity: int | None = None
    policy: str = "block"
    batch_size: int = 256
    journal: str | None = None
    """None, "plain" or "write_ahead"."""
    coalesces: bool = False
    on_error: str = "continue"
    """continue, stop, exit, retry, ordered or callable."""
    then: str = "dead_letter"
    """Of a Retry."""
    is_async: bool = False
    lane: tuple[int, int] = (100, 1000)
    """Of `async def` handlers: how many coroutines run at a time, and how many events may wait for their keys."""
    has_letters: bool = False
    keeps_context: bool = False
    stops: bool = False
    """Handlers may stop the dispatcher."""
    has_children: bool = True
    """Handlers may post."""
    has_virtual_rows: bool = False
    """The journal has the times of the manual clock."""
    is_ahead: bool = False
    """The manual clock is ahead of the system's, by which the journal notes when it has accepted an event."""


@dataclass
class Plan:
    """One event, and what its handler does, in this order."""

    type: str
    key: str
    actions: list[list[Any]] = field(default_factory=list)


@dataclass
class Script:
    seed: int
    config: Config
    events: dict[int, Plan]
    steps: list[list[Any]]


def make_script(seed: int) -> Script:
    return _Maker(seed).make()


class _Maker:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.events: dict[int, Plan] = {}
        self.config = self._config()
        self.restarts = self.config.journal == "write_ahead"  # a plain journal is not continued

    def make(self) -> Script:
        steps: list[list[Any]] = []
        for run in range(self.random.randint(1, 3) if self.restarts else 1):
            steps += self._steps_of_run(is_first=run == 0)
            is_crash = bool(self.config.journal) and self.random.random() < 0.6
            steps += [["crash"]] if is_crash else [self._stop()]
            if not self.restarts and is_crash:
                break
            while not is_crash and self.random.random() < 0.3:
                steps.append(self._post())  # to one that has stopped
        steps += self._last_steps() if self.restarts else []
        return Script(self.seed, self.config, self.events, steps)

    def _config(self) -> Config:
        random, config = self.random, Config()
        if random.random() < 0.5:
            config.capacity = random.randint(1, 4)
            config.policy = random.choice(["block", "reject", "drop_oldest"])
        config.batch_size = random.choice([1, 2, 3, 256])
        config.journal = random.choice([None, None, "plain", "write_ahead", "write_ahead"])
        config.is_async = random.random() < 0.25
        config.coalesces = random.random() < 0.4
        config.on_error = random.choice(["continue", *RETRYING, *RETRYING[:2], "stop", "exit"])
        config.then = random.choice(["dead_letter", "dead_letter", "continue", "stop"])
        config.has_letters = random.random() < 0.6
        config.keeps_context = random.random() < 0.2
        config.stops = random.random() < 0.3
        config.has_virtual_rows = random.random() < 0.5
        config.is_ahead = random.random() < 0.5
        if config.is_async:
            config.stops = False
            if config.on_error in ("stop", "exit", "callable"):
                config.on_error = "ordered"
            if config.then == "stop":
                config.then = "continue"
            if config.capacity is not None:
                config.lane = (random.randint(1, 3), random.randint(0, 2))
                config.on_error, config.has_children = "continue", False
        if config.on_error in ("stop", "exit") or (config.on_error in RETRYING and config.then == "stop"):
            config.stops = True
        return config

    # -- events ------------------------------------------------------------------------------------------------------

    def _event(self, depth: int = 0, parent: Plan | None = None) -> int:
        """`parent`: of whose order the event is, as the child of an `async def` handler's event."""
        random, config = self.random, self.config
        number = len(self.events) + 1
        types = ["Work.DO", "Work.DO", "Work.MORE", "Other.DO"]
        if config.coalesces:
            types += ["Latest.IS"] * 3
        plan = Plan(random.choice(types), random.choice(KEYS))
        if parent is not None:
            plan = Plan(parent.type, parent.key)
        self.events[number] = plan
        for _ in range(random.choice([0, 0, 1, 1, 2, 3])):
            action = self._action(depth, plan)
            if action is not None:
                plan.actions.append(action)
        return number

    def _action(self, depth: int, plan: Plan) -> list[Any] | None:
        random, config = self.random, self.config
        failing = 0.05 if config.on_error in ("stop", "exit") else 0.3
        if random.random() < failing:
            return ["raise", random.choice([1, 1, 2, 9])] if random.random() < 0.8 else ["odd"]
        if config.stops and random.random() < 0.04:
            # Without a drain, a journal may be closed before the line of a next attempt gets there.
            is_in_log = config.journal == "write_ahead" and config.on_error in RETRYING
            return ["stop", is_in_log or random.random() < 0.6]
        kinds = ["transition", "transition"] if config.journal else []
        if config.has_children and depth < 2 and not (config.is_async and plan.type == "Latest.IS"):
            kinds += ["post", "post", "after"] + ["ask"] * (not config.is_async)
            if config.journal != "write_ahead":
                kinds += ["nowait", "later"]
            elif not (config.stops or config.coalesces):
                kinds.append("later")
        if not config.is_async:
            kinds.append("cancel")
        if not kinds:
            return None
        kind = random.choice(kinds)
        if kind in ("post", "nowait", "later", "ask"):
            return [kind, self._event(depth + 1, plan if config.is_async else None)]
        if kind == "after":
            return [kind, random.choice([0, 1, 3]), self._event(depth + 1, plan if config.is_async else None)]
        return [kind, random.randint(0, 9)] if kind == "cancel" else [kind]

    # -- steps -------------------------------------------------------------------------------------------------------

    def _stop(self) -> list[Any]:
        drains = self.random.random() < 0.6
        # The posts are made while a handler at the gate keeps it from ending.
        return ["stop", drains, [self._post() for _ in range(self.random.randint(0, 3))] if drains else []]

    def _steps_of_run(self, *, is_first: bool) -> list[list[Any]]:
        random = self.random
        steps: list[list[Any]] = [] if is_first else [["restart", random.choice([0, 0, 500, 5000])]]
        if random.random() < 0.3:
            steps.append(["close"])
        while random.random() < 0.3:
            steps.append(random.choice([self._post, self._timer, self._post])())
        steps.append(["start"])
        for _ in range(random.randint(4, 20)):
            steps += self._scene() if random.random() < 0.15 else [self._step()]
        return steps

    def _last_steps(self) -> list[list[Any]]:
        return [["restart", 100], ["start"], ["open"], ["advance", 20_000], ["drained"], ["stop", True, []]]

    def _step(self) -> list[Any]:
        random = self.random
        makers = [
            (10, self._post),
            (3, self._burst),
            (4, self._timer),
            (5, lambda: ["advance", random.choice([0, 1, 500, 1000, 1000, 2500, 7000])]),
            (4, lambda: ["close"]),
            (4, lambda: ["let_one"]),
            (4, lambda: ["open"]),
            (2, lambda: ["drained"]),
            (1, lambda: ["cancel_later", random.randint(0, 9)]),
            (1, lambda: [random.choice(["register_other", "unregister_other"])]),
            (6, lambda: [random.choice(["cancel_scheduled", "cancel_ask"]), random.randint(0, 9)]),
            (2, lambda: ["cancel_key", random.choice(TIMER_KEYS)]),
            (2, lambda: ["scheduled", random.choice(["", "x"])]),
        ]
        return random.choices([make for _, make in makers], [weight for weight, _ in makers])[0]()

    def _scene(self) -> list[list[Any]]:
        """Steps that random ones rarely make in this order: much is queued at the closed gate, and some withdrawn."""
        random = self.random
        steps: list[list[Any]] = [["close"], ["post", self._event()], ["ask", self._event()], self._burst()]
        steps += [["cancel_ask", -random.randint(1, 2)] for _ in range(random.randint(0, 2))]
        key = random.choice(TIMER_KEYS)
        steps += [["after", delay, self._event(), key] for delay in random.choice([(1,), (2, 1), (0, 3)])]
        steps += random.choice([[], [["cancel_key", key]], [["advance", 1000], ["cancel_key", key]]])
        return steps + random.choice([[], [["let_one"]], [["let_one"], ["let_one"]], [["open"]]])

    def _post(self) -> list[Any]:
        return [self.random.choice(["post", "post", "post_nowait", "post_later", "ask"]), self._event()]

    def _burst(self) -> list[Any]:
        return ["burst", [self._post() for _ in range(self.random.randint(2, 6))]]

    def _timer(self) -> list[Any]:
        random, kind = self.random, self.random.choice(["after", "after", "at", "every"])
        key = random.choice(["", *TIMER_KEYS])
        if kind != "every":
            return [kind, random.choice([0, 1, 1.5, 2, 5]), self._event(), key]
        what = self._event() if random.random() < 0.5 else 0  # 0: a factory
        return [kind, random.choice([1, 2, 3]), random.choice([None, 0, 0.5]), what, key]
