"""Finds the format of a log in its first lines: the prefixes that other tools have written, and the layout."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.yarnlog.clock import LogClock
from pipeline.yarnlog.headers import HeaderLayout, HeaderReader, header_reader
from pipeline.yarnlog.messages import MARKERS, read_message
from pipeline.yarnlog.prefixes import Prefix, prefixes, without_prefixes

_MOST_PREFIXES = 3
_CHARACTERS = 2_000
"""Of a line, as far as the search looks at it without its prefixes."""
_CANDIDATE = re.compile("|".join(("TRACE|DEBUG|INFO|WARN|ERROR|FATAL", *map(re.escape, MARKERS))))
_CLEARLY = 1.05
_SETTLED = 0.8

_Score = tuple[int, int, int]


@dataclass(frozen=True)
class LogFormat:
    """The format of one file."""

    prefixes: tuple[str, ...] = ()
    """Names of the prefixes, outermost first."""
    layout: HeaderLayout = HeaderLayout.HADOOP

    def reader(self) -> HeaderReader:
        """The function that parses headers in this format, without prefixes."""
        return header_reader(self.layout)

    def prefix_kinds(self) -> list[Prefix]:
        """The prefixes, with a memory of their own."""
        kinds = {kind.name: kind for kind in prefixes()}
        return [kinds[name] for name in self.prefixes]


def find_format(lines: Sequence[str], clock: LogClock) -> LogFormat | None:
    """The format in which most of the lines are headers; None: no line is one, in any format.

    A format has to be clearly better than a simpler one: a log may quote lines of another format.
    """
    found, best = None, (0, 0, 0)
    candidates = [line for line in lines if _CANDIDATE.search(line)]
    chains: list[tuple[tuple[str, ...], list[str]]] = [((), list(lines))] if candidates else []
    for _ in range(1 + _MOST_PREFIXES):
        for chain, texts in chains:
            layout, score = _layout(texts, clock)
            if _beats(score, best):
                found, best = LogFormat(chain, layout), score
        if best[1] >= _SETTLED * len(candidates):
            break
        chains = [longer for chain, texts in chains for longer in _longer(chain, texts)]
    return found


def _longer(chain: tuple[str, ...], texts: list[str]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """The chain with each further prefix that a line begins with, and the lines without it."""
    for prefix in prefixes():
        if prefix.name not in chain and any(prefix.taken_off(text) is not None for text in texts):
            without = without_prefixes([prefix], enumerate(texts))
            yield (*chain, prefix.name), [line.text for line in without]


def _layout(texts: Sequence[str], clock: LogClock) -> tuple[HeaderLayout, _Score]:
    shortened = [text[:_CHARACTERS] for text in texts]
    layout, best = HeaderLayout.HADOOP, (0, 0, 0)
    for candidate in HeaderLayout:
        score = _score(shortened, header_reader(candidate), clock)
        if candidate >= HeaderLayout.UNTIMED:
            # Text without a time is a header only if its message is known.
            score = score[0], *best[1:]
        if _beats(score, best):
            layout, best = candidate, score
    return layout, best


def _score(texts: Sequence[str], reader: HeaderReader, clock: LogClock) -> _Score:
    """Numbers of headers: of messages of a known kind, with a logger, all."""
    known = named = headers = 0
    following = iter([*texts[1:], ""])
    rest = iter(texts)
    for text in rest:
        after = next(following)
        header = reader(text, clock)
        if header is None:
            continue
        headers += 1
        named += bool(header.logger)
        if read_message(header.logger, header.message or after.strip()) is not None:
            known += 1
            if not header.message:  # wrapped: the next line is this one's
                next(rest, None)
                next(following, None)
    return known, named, headers


def _beats(score: _Score, best: _Score) -> bool:
    for one, other in zip(score, best, strict=True):
        if one > other * _CLEARLY:
            return True
        if one < other:
            return False
    return False
