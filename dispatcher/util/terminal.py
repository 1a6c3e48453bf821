"""Making foreign text safe to print in one line of a terminal."""

from __future__ import annotations

from typing import Final

LONGEST_LINE: Final = 2000
"""Characters of an error line. A longer one has lost its end: some value in it was huge."""


def printable(text: str) -> str:
    r"""The text with every character escaped that is not printed as itself, such as `\x1b`, `\n`, `\u202e`, `\udcff`.

    What is left changes neither the terminal nor the line: no control characters, no line ends, no characters that
    reverse or hide others, and no lone surrogates, which no encoding can write.
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def one_line(text: str, most: int = LONGEST_LINE) -> str:
    """`printable` of the text, cut in the middle to `most` characters: an error names the thing first, the advice last.

    Escaping may make it up to ten times as long.
    """
    if len(text) > most:
        head = most * 2 // 3
        text = f"{text[:head]} ... {text[head - most :]}"
    return printable(text)


def _escaped(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
