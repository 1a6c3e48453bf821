r"""What others have named is printed so that it changes neither the terminal nor the line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.util.terminal import one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("container_1", "container_1"),
        ("Grüße, 世界", "Grüße, 世界"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x9b31m", r"\x9b31m"),
        ("a\u202eb", r"a\u202eb"),
        ("a\u2028b", r"a\u2028b"),
        ("\udcff", r"\udcff"),
        ("\0", r"\x00"),
    ],
    ids=ascii,
)
def test_what_is_not_printed_as_itself_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_any_text_becomes_printable_and_can_be_encoded(text: str) -> None:
    shown = printable(text)

    assert shown.isprintable()
    assert shown.encode("utf-8").decode("utf-8") == shown


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    assert one_line("x" * 30 + "end", 30) == "x" * 20 + " ... " + "x" * 7 + "end"
    assert one_line("x" * 30, 30) == "x" * 30
