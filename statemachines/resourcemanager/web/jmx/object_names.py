"""Names of beans, and patterns that choose among them, after Java's ObjectName."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
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
    """It is a pattern: names with further properties match, too."""

    @classmethod
    def parse(cls, text: str) -> ObjectName:
        """
        >>> ObjectName.parse("Hadoop:service=ResourceManager,*").is_open
        True

        Raises:
            MalformedNameError
        """
        domain, colon, rest = text.partition(":")
        is_open = rest == "*" or rest.endswith(",*")
        listed = rest[:-1].rstrip(",") if is_open else rest
        properties, end = {}, 0
        for each in _PROPERTY.finditer(listed):
            if each.start() != end or each[1] in properties:
                break
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
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def _quoted(value: str) -> str:
    if not _NEEDS_QUOTES.search(value):
        return value
    return '"' + re.sub(r'([*?"\\])', r"\\\1", value).replace("\n", "\\n") + '"'


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], value[1:-1])
