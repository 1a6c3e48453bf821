"""YAML within bounds: any text is parsed, or refused with its place, before it costs more than it should."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.util.yaml_text import MOST_BYTES, YAMLTextError, parse_yaml


def refusal(text: str) -> str:
    with pytest.raises(YAMLTextError) as caught:
        parse_yaml(text)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 400
    return message


def bomb(levels: int, width: int = 10) -> str:
    """A few hundred bytes that describe `width ** levels` values."""
    lines = [f"a0: &a0 [{', '.join('x' * width)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines)


def test_aliases_repeat_what_their_anchor_names() -> None:
    assert parse_yaml("a: &one {x: 1}\nb: *one\nc: {<<: *one, y: [*one]}") == {
        "a": {"x": 1},
        "b": {"x": 1},
        "c": {"x": 1, "y": [{"x": 1}]},
    }


@pytest.mark.parametrize(
    "text",
    [
        bomb(9),
        bomb(100, width=2),
        "a: &a {x: 1}\n" + "\n".join(f"b{n}: {{<<: [{', '.join(['*a'] * 100)}]}}" for n in range(1000)),
    ],
    ids=["wide", "long", "merged"],
)
def test_an_alias_bomb_is_refused_at_the_alias_that_is_too_much(text: str) -> None:
    """452 bytes kept `dispatcher run` busy for a minute, with the error message alone."""
    assert "aliases repeat more than 100,000 values" in refusal(text)


def test_aliases_may_not_nest_deeper_than_brackets() -> None:
    text = "a0: &a0 [x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 100))

    assert refusal(text) == "line 63, column 12: nested more than 64 levels deep"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: 1\nb: 2\na: 3", "line 3, column 1: the key a is given twice; the first is in line 1"),
        ("a: 1\n'a': 2", "line 2, column 1: the key a is given twice; the first is in line 1"),
        ("a:\n- {x: 1,\n  y: {z: 1, z: 2}}", "line 3, column 13: the key z is given twice; the first is in line 3"),
        ("{1: a, 0x1: b}", "line 1, column 8: the key 0x1 is given twice; the first is in line 1"),
        ("{1: a, true: b}", "line 1, column 8: the key true is given twice; the first is in line 1"),
        ("~: a\nnull: b", "line 2, column 1: the key null is given twice; the first is in line 1"),
        ("&key a: 1\n*key : 2", "line 1, column 1: the key a is given twice; the first is in line 1"),
        ("<<: {a: 1}\n<<: {b: 1}", "line 2, column 1: the key << is given twice; the first is in line 1"),
        ("!!set {a, a}", "line 1, column 11: the key a is given twice; the first is in line 1"),
    ],
)
def test_a_key_that_is_given_twice_is_refused_at_the_second(text: str, place: str) -> None:
    """The last one won, and a whole section was dropped without a word."""
    assert refusal(text) == place


def test_a_key_overrides_one_that_is_merged_in() -> None:
    text = "base: &base {a: 1, b: 1}\nmore: &more {b: 2, c: 2}\nall: {<<: [*base, *more], a: 3}\n"

    assert parse_yaml(text)["all"] == {"a": 3, "b": 1, "c": 2}


@pytest.mark.parametrize(
    ("text", "number"), [("1e3", 1000.0), ("1.5e3", 1500.0), ("-2E-1", -0.2), (".5e1", 5.0), ("1.5e+3", 1500.0)]
)
def test_a_number_may_have_an_exponent_as_in_json(text: str, number: float) -> None:
    assert parse_yaml(text) == number


@pytest.mark.parametrize(("text", "value"), [("010", 8), ("1:30", 90), ("-0_17", -15), ("1:30.5", 90.5)])
def test_a_number_that_only_yaml_1_1_reads_so_is_refused(text: str, value: float) -> None:
    """A port 010 was 8, and a time 1:30 was 90."""
    message = refusal(f"a: {text}")

    assert message == (
        f"line 1, column 4: {text} means {value} in YAML 1.1, and something else in 1.2; write {value}, or put it in "
        "quotes for a string"
    )
    assert parse_yaml(f"a: '{text}'") == {"a": text}


def test_a_long_text_is_refused_unread() -> None:
    assert refusal(" " * (MOST_BYTES + 1)) == "longer than 1,048,576 characters"


def test_the_value_in_a_message_is_cut_and_printable() -> None:
    value = "y" * 1000 + r"\e[2J\n"

    assert refusal(f'!!bool "{value}"').endswith(r"\x1b[2J\n' is not !!bool")


TAGS = [
    "bool",
    "int",
    "float",
    "null",
    "timestamp",
    "binary",
    "omap",
    "pairs",
    "set",
    "str",
    "seq",
    "map",
    "merge",
    "value",
]
VALUES = [
    "",
    "''",
    "maybe",
    "[]",
    "{}",
    "[a]",
    "{a: b}",
    "1e999",
    "-",
    ".",
    "0x",
    "1:",
    "2026-99-99",
    '"\\ud800"',
    "&x [*x]",
]


@pytest.mark.parametrize("tag", TAGS)
def test_an_explicit_tag_is_read_or_refused(tag: str) -> None:
    """`!!bool 'maybe'` came as a KeyError, and `!!int ''` as an IndexError."""
    for value in VALUES:
        for text in (f"!!{tag} {value}", f"a: !!{tag} {value}", f"{{!!{tag} {value} : b}}"):
            try:
                parse_yaml(text)
            except YAMLTextError as error:
                assert str(error).isprintable(), text  # noqa: PT017


pieces = st.sampled_from(
    [*VALUES, *(f"!!{tag} " for tag in TAGS), "&a ", "*a", "<<: ", ": ", "- ", "\n", "  ", ",", "[", "{", "]", "}"]
)


@given(st.lists(pieces, max_size=12).map("".join) | st.text(max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parse_yaml(text)
    except YAMLTextError as error:
        assert str(error).isprintable()  # noqa: PT017
