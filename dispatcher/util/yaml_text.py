"""YAML within bounds, and without keys that are given twice.

A few bytes of YAML can describe more than a machine holds.

PyYAML builds what aliases repeat only once, but whoever walks through the values, to check or to print them, meets it
again each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from dispatcher.util.terminal import one_line

MOST_BYTES: Final = 1 << 20
"""Size of a text."""
MOST_DEPTH: Final = 64
"""Lists and mappings inside each other, also by aliases."""
MOST_REPEATED: Final = 100_000
"""Values that all aliases together repeat."""
MOST_DIGITS: Final = 400
"""Characters of a number: the greatest double has 309 digits before its point."""

_LONGEST_SHOWN: Final = 80
_MERGE: Final = "tag:yaml.org,2002:merge"
_TEXTS: Final = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:value", _MERGE)
"""Tags of keys that are what is written: strings, `<<` and `=`."""
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_ONLY_YAML_1_1: Final = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
"""Octal numbers such as 010, and numbers to the base 60, such as 1:30."""


class YAMLTextError(ValueError):
    """A text is not YAML, exceeds a bound, or gives a key twice.

    The message is printable and one line, and `where` the place: line and column, or empty.
    """

    def __init__(self, problem: str, where: str = "") -> None:
        self.problem = problem
        self.where = where
        super().__init__(f"{where}: {problem}" if where else problem)


def parse_yaml(text: str) -> Any:
    """The value of a text with one YAML document; None if it is empty.

    Raises:
        YAMLTextError: the only error that any text can cause.
    """
    if len(text) > MOST_BYTES:
        raise YAMLTextError(f"longer than {MOST_BYTES:,} characters")
    try:
        loader = _BoundedLoader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        raise YAMLTextError(f"not valid YAML: {error.reason}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise YAMLTextError(one_line(getattr(error, "problem", None) or "not valid YAML"), where) from error
    except Exception as error:  # PyYAML lets errors of its own parts through, such as ValueError
        raise YAMLTextError(f"not valid YAML: {one_line(str(error)) or type(error).__name__}") from error


def place_of(text: str, path: Sequence[int | str]) -> str:
    """Line and column of the key, or of the item of a list, at the `path` in a text that `parse_yaml` has accepted.

    Parts of the path that are not there are passed over; empty if all are.
    """
    loader = _BoundedLoader(text)
    try:
        node, mark = loader.get_single_node(), None
    finally:
        loader.dispose()
    for part in path:
        mark, node = next(_found(node, part), (mark, node))
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""


def _found(node: Any, part: int | str) -> Iterator[tuple[Any, Any]]:
    """The mark and the node of this key or item, first the node's own, then those that are merged in."""
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        yield node.value[part].start_mark, node.value[part]
    elif isinstance(node, yaml.MappingNode):
        yield from ((key.start_mark, value) for key, value in node.value if key.value == str(part))
        for merged in (value for key, value in node.value if key.tag == _MERGE):
            for each in merged.value if isinstance(merged, yaml.SequenceNode) else [merged]:
                yield from _found(each, part)


class _BoundedLoader(yaml.SafeLoader):
    """Refuses what exceeds the bounds, and keys given twice, while it composes the nodes, before it builds a value."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._open: list[list[int]] = []  # number and greatest depth of the nodes so far, of each open node
        self._measured: dict[Any, tuple[int, int]] = {}  # both, of each finished node
        self._repeated = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark: Any = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if node not in self._measured:
                raise ComposerError(None, None, f"the alias {event.anchor} is inside its own anchor", mark)
            count, depth = self._measured[node]
            self._repeated += count
            if self._repeated > MOST_REPEATED:
                raise ComposerError(None, None, f"aliases repeat more than {MOST_REPEATED:,} values", mark)
        else:
            self._check_depth(1, mark)
            self._open.append([1, 1])
            node = super().compose_node(parent, index)
            count, depth = self._open.pop()
            self._measured[node] = (count, depth)
        self._check_depth(depth, mark)
        if self._open:
            above = self._open[-1]
            above[0] += count
            above[1] = max(above[1], depth + 1)
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Refuse a key that equals an earlier one of the mapping: PyYAML would drop one of the two values.

        A key may override one that comes from another mapping by a merge, `<<`, of which a mapping has one.
        """
        node: Any = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # no mapping can have it; the construction says so
            # Keys that are written differently may be equal: 1, 0x1 and true are, in Python.
            value = key.value if key.tag in _TEXTS else self.construct_object(key)
            if value in lines:
                what = f"the key {one_line(key.value, _LONGEST_SHOWN)} is given twice"
                raise ComposerError(None, None, f"{what}; the first is in line {lines[value]}", key.start_mark)
            lines[value] = key.start_mark.line + 1
        return node

    def _check_depth(self, depth: int, mark: Any) -> None:
        if len(self._open) + depth > MOST_DEPTH:
            raise ComposerError(None, None, f"nested more than {MOST_DEPTH} levels deep", mark)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if node.tag in _NUMBERS and isinstance(node, yaml.ScalarNode) and len(node.value) > MOST_DIGITS:
            raise ConstructorError(None, None, f"a number of more than {MOST_DIGITS} characters", node.start_mark)
        if node.tag in _NUMBERS and isinstance(node, yaml.ScalarNode) and _ONLY_YAML_1_1.fullmatch(node.value):
            found = super().construct_object(node, deep)
            problem = f"{one_line(node.value, _LONGEST_SHOWN)} means {found} in YAML 1.1, and something else in 1.2"
            raise ConstructorError(
                None, None, f"{problem}; write {found}, or put it in quotes for a string", node.start_mark
            )
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:  # such as KeyError for !!bool maybe, and ValueError for 2026-99-99
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            value = one_line(repr(node.value), _LONGEST_SHOWN) if isinstance(node, yaml.ScalarNode) else "this"
            why = f": {error}" if isinstance(error, ValueError) else ""
            raise ConstructorError(None, None, f"{value} is not {tag}{why}", node.start_mark) from error


# YAML 1.2's, as JSON's: to PyYAML, 1e3 and 1.5e3 are strings, and only 1.5e+3 is a number.
_BoundedLoader.add_implicit_resolver(
    _NUMBERS[1], re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)
