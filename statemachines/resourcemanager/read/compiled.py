"""Functions that are compiled from declarations, once, as `dataclasses` does it.

A loop over declared fields calls several functions for each value. The compiled function has the same steps one after
the other, as one would write them by hand: long lists of entities are made two to three times as fast.

Any thread.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

from statemachines.resourcemanager.read.fields import Field, Given, Item

_numbers: Final = count(1)


def compiled(head: str, lines: Iterable[str], names: Mapping[str, Any]) -> Callable[..., Any]:
    """The function with this head, such as `write(report, around)`, and these lines, in which `names` are known.

    A traceback shows the lines.

    >>> compiled("twice(number)", ["doubled = factor * number", "return doubled"], {"factor": 2})(21)
    42
    """
    source = "".join([f"def {head}:\n", *(f"    {line}\n" for line in lines)])
    file = f"<compiled {head} {next(_numbers)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    known = dict(names)
    exec(compile(source, file, "exec"), known)
    found: Callable[..., Any] = known[head.partition("(")[0]]
    return found


def values_of(
    fields: Sequence[Field[Any]], lines: list[str], names: dict[str, Any]
) -> Iterator[tuple[Field[Any], str]]:
    """The fields with the expressions of their values. Adds the lines before these, and the names in them."""
    getters = [field.get.of if isinstance(field.get, Item) else field.get for field in fields]
    found: dict[object, str] = {}
    for get, uses in Counter(getters).items():
        if isinstance(get, Given):
            found[get] = f"around.{get.name}"
            continue
        name = f"get_{len(names)}"
        names[name], found[get] = get, f"{name}(report, around)"
        if uses > 1:
            lines.append(f"found_by_{name} = {found[get]}")
            found[get] = f"found_by_{name}"
    for field, get in zip(fields, getters, strict=True):
        yield field, f"{found[get]}[{field.get.index}]" if isinstance(field.get, Item) else found[get]
