"""Scenarios of a stream task: what its scripted input does, run by run, and what comes of it.

A row is the chain of the task, by its operators' names, and a script. `hold` holds its elements until the end, and any
other operator passes everything on. `run a b@5 ~5 crash` runs a task over an input that gives these elements, and
crashes. A later run is restored from what the one before has stored, and goes on behind the step that was stored.

An input may also ask for a `checkpoint`, a `savepoint` or a `drain`, `release` an element that is held, or do nothing:
`-`. Its `last` step asks for a savepoint. `early` asks for a checkpoint before the run, `cancelled` cancels it before.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from pipeline.streaming import CheckpointStorage, StreamTask, TaskCancelledError

from ....kit import TIMEOUT_S
from ..calls.stage import element, name
from .task_fakes import (
    Crash,
    Element,
    HoldingOperator,
    InputStatus,
    LoggedOperator,
    OperatorContext,
    ScriptedInput,
    crash,
)


class TaskStage:
    def __init__(self, chain: str, storage: CheckpointStorage | None = None) -> None:
        self.chain = chain.split()
        self.storage = storage
        self.output: list[Element] = []  # of all runs

    def play(self, verb: str, *words: str) -> None:
        self.log: list[str] = []
        self.holding: list[HoldingOperator] = []
        self.requests: list[Future[int]] = []
        self.raised: list[Exception] = []
        self.source = ScriptedInput(*map(self._step, words))
        chain = [self._maker(name) for name in self.chain]
        self.task = StreamTask(self.source, chain, self._emit, checkpoint_storage=self.storage)
        if verb == "early":
            self._step("checkpoint")()
        elif verb == "cancelled":
            self.task.cancel()
        try:
            self.task.run()
        except (Crash, TaskCancelledError) as error:
            self.raised.append(error)

    def _maker(self, name: str) -> Any:
        def make(context: OperatorContext) -> LoggedOperator:
            if name != "hold":
                return LoggedOperator(context, self.log, name)
            self.holding.append(HoldingOperator(context, log=self.log, name=name))
            return self.holding[-1]

        return make

    def _emit(self, emitted: Element) -> None:
        self.output.append(emitted)
        self.log.append(f"out {name(emitted)}")

    def _step(self, word: str) -> Any:
        steps = {
            "-": lambda: None,
            "checkpoint": lambda: self.requests.append(self.task.trigger_checkpoint()),
            "savepoint": lambda: self.requests.append(self.task.stop_with_savepoint()),
            "drain": lambda: self.requests.append(self.task.stop_with_savepoint(drain=True)),
            "last": lambda: self.requests.append(self.task.stop_with_savepoint()) or InputStatus.END_OF_INPUT,
            "release": lambda: self.holding[0].release(),
            "crash": crash,
        }
        return steps.get(word) or element(word)

    def look(self, what: str) -> Iterable[object]:
        match what:
            case "out":
                return map(name, self.output)
            case "log":
                return self.log
            case "raised":
                return map(name, self.raised)
            case "state":
                return [self.task.state.name]
            case "requests":
                return [request.result(TIMEOUT_S) for request in self.requests]
            case "files":
                return [path.name for path in self.storage.paths()]
            case "closed":
                return [self.source.is_closed]
            case "read":
                return [self.source.position]
            case "has_ended":
                return [any(entry.endswith("end_input") for entry in self.log)]
        taken = self.storage.latest()
        assert taken is not None
        if what == "held":
            return [name(each) for state in taken.operator_states for each in state]
        return [getattr(taken, what)]
