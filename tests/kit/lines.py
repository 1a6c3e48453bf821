"""Lines of output, against what they have to say."""

from __future__ import annotations

from collections.abc import Iterable


def assert_lines(shown: Iterable[str], wanted: str) -> None:
    """Each text of `wanted`, between ` / `, is in a line, in this order. Runs of spaces count as one.

    Several texts may be in one line. A bar stands for the beginning or the end of a line. A plus in front means: in the
    line right after the one before.
    """
    lines = [f"|{' '.join(line.split())}|" for line in shown]
    at = 0
    for each in wanted.split(" / ") if wanted else ():
        text = each.removeprefix("+")
        places = range(at, len(lines)) if text == each else range(at + 1, min(at + 2, len(lines)))
        found = next((place for place in places if text in lines[place]), None)
        assert found is not None, "\n".join([f"{each!r} is not in these lines, from line {at} on:", *lines])
        at = found
