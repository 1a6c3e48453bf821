"""Names of beans, and patterns that choose among them, after Java's ObjectName."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

ALL: Final = "*:*"
_PROPERTY: Final = re.compile(r'([^,=:*?"]+)=("(?:[^"\\]|\\.)*"|[^,=:"]*)(?:,|$)')
_NEEDS_QUOTES: Final = re.compile(r'[,=:*?"\\\n]')


class MalformedNameError(ValueError):
    """A text is not the name of a bean, nor a pattern of names."""


class ObjectName(NamedTuple):
    """A name such as `Hadoop:service=ResourceManager,name=ClusterMetrics`, or a pattern."""

    domain: str
    properties: Mapping[str, str]
    """In the order in which they are written."""
    is_open: bool = False
    """Whether it is a pattern that also matches names with further properties."""

    @classmethod
    def parse(cls, text: str) -> ObjectName:
        """An empty text is the pattern of all names, as in Java.

        >>> ObjectName.parse("Hadoop:service=ResourceManager,*").is_open
        True

        Raises:
            MalformedNameError
        """
        domain, colon, rest = (text or ALL).partition(":")
        is_open = rest == "*" or rest.endswith(",*")
        listed = rest[:-1].rstrip(",") if is_open else rest
        properties, end = {}, 0
        while (each := _PROPERTY.match(listed, end)) is not None and each[1] not in properties:
            properties[each[1]] = _unquoted(each[2])
            end = each.end()
        if not colon or end != len(listed) or listed.endswith(",") or not (properties or is_open):
            raise MalformedNameError(f"{text[:200]!r} is not a name; write DOMAIN:KEY=VALUE,...; `,*` for further keys")
        return cls(domain, properties, is_open)

    def matches(self, name: ObjectName) -> bool:
        """Whether this pattern, or name, is for that name. `*` and `?` stand for any characters, or for one.

        >>> name = ObjectName.parse("Hadoop:service=ResourceManager,name=QueueMetrics,q0=root")
        >>> [ObjectName.parse(each).matches(name) for each in (ALL, "Hadoop:name=QueueMetrics,*", "Hadoop:q0=*")]
        [True, True, False]
        """
        own, others = self.properties, name.properties
        if not _fits(name.domain, self.domain) or not (self.is_open or own.keys() == others.keys()):
            return False
        return all(key in others and _fits(others[key], value) for key, value in own.items())

    def __str__(self) -> str:
        return f"{self.domain}:" + ",".join(f"{key}={_quoted(value)}" for key, value in self.properties.items())


def _fits(text: str, pattern: str) -> bool:
    """Not by a regular expression: Python would keep one for each pattern that any client ever sends."""
    if "*" not in pattern and "?" not in pattern:
        return text == pattern
    at = place = 0
    # Where the text goes on after what it stands for, and the pattern after it:
    last_star: tuple[int, int] | None = None
    while at < len(text):
        if pattern[place : place + 1] == "*":
            place += 1
            last_star = at, place
        elif pattern[place : place + 1] in ("?", text[at]):
            at, place = at + 1, place + 1
        elif last_star is not None:  # it stands for a character more
            at, place = last_star = last_star[0] + 1, last_star[1]
        else:
            return False
    return not pattern[place:].strip("*")


def _quoted(value: str) -> str:
    if not _NEEDS_QUOTES.search(value):
        return value
    return '"' + re.sub(r'([*?"\\])', r"\\\1", value).replace("\n", "\\n") + '"'


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], value[1:-1])
