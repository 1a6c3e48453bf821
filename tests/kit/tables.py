"""Tables as text, for rows that would take many lines as Python values."""

from __future__ import annotations


def paired(text: str) -> list[tuple[str, str]]:
    """Rows of two lines: what is given and, indented, what is expected. Lines that begin with `#` are comments."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    given, expected = lines[::2], lines[1::2]
    assert all(line.startswith("    ") for line in expected), "a row has two lines, the second indented"
    assert not any(line.startswith("    ") for line in given), "a row has two lines, the first not indented"
    return list(zip(given, map(str.strip, expected), strict=True))
