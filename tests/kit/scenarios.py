"""Scenarios as data: a script says what happens, step by step, and what is seen then.

    "post 1 2 | +100 -> seen 1 2 ; failed 1 | stop"

Bars part the steps. A step is a verb with its words, then, behind an arrow, what is looked at with the words it shows;
semicolons part several looks. A suite has one Stage that knows its verbs and looks, and a table with a row for each
promise: its name is a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Stage(Protocol):
    def play(self, verb: str, *words: str) -> None:
        """Do one step."""

    def look(self, what: str) -> Iterable[object]:
        """What is seen of that; compared as text, with `_` for spaces."""


def play(stage: Stage, script: str) -> None:
    """Play the script; fails at the first step after which something else is seen."""
    steps = script.split("|")
    for number, step in enumerate(steps):
        happens, _, looks = step.partition("->")
        stage.play(*happens.split())
        for what, *words in filter(None, map(str.split, looks.split(";"))):
            seen = [str(each).replace(" ", "_") for each in stage.look(what)]
            assert seen == words, f"{what} {' '.join(seen)}\nafter: {'|'.join(steps[: number + 1]).strip()}"
