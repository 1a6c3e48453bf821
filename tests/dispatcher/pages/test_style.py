"""The shared style sheet: legible in both schemes, small, and without anything from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dispatcher

pytestmark = pytest.mark.long

SHEET = (Path(dispatcher.__file__).parent / "pages/static/style.css").read_text(encoding="utf-8")
MOST_BYTES = 26_000
TEXT_AA = 4.5
GRAPHIC_AA = 3.0

PAGE = ("paper", "ground")
"""What text is on where no rule says otherwise: panels, and the page around them."""
INHERITED = ("text", "soft", "accent")
"""What text and links have where no rule says otherwise."""
VARIABLE = r"var\(--([\w-]+)\)"


def rules() -> list[tuple[str, dict[str, str]]]:
    """(selector, declarations) of the whole sheet, one selector each; those of media queries as well."""
    text = re.sub(r"/\*.*?\*/", "", SHEET, flags=re.DOTALL)
    text = re.sub(r"@media[^{]*\{", "", text)
    found = []
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
        declarations = {
            name.strip(): value.strip() for name, _, value in (each.partition(":") for each in body.split(";"))
        }
        found += [(selector.strip(), declarations) for selector in selectors.split(",")]
    return found


def named(declarations: dict[str, str], *properties: str) -> str | None:
    """The colour that one of the properties takes from the names; None: none does."""
    for each in properties:
        match = re.fullmatch(VARIABLE, declarations.get(each, ""))
        if match is not None:
            return match[1]
    return None


def is_text(selector: str) -> bool:
    return selector.split()[-1].partition(".")[0] == "text" or selector.endswith((".number", ".number.wrong", ".label"))


def plain(selector: str) -> str:
    """Without pseudo-classes, and without the last part's attributes."""
    return re.sub(r"(::?[\w-]+(\([^)]*\))?|\[[^\]]*\])", "", selector).strip()


def grounds_of(selector: str, grounds: dict[str, set[str]]) -> set[str]:
    """What is behind the text of a selector: its own ground in all its states, or that of what it is in."""
    words = plain(selector).split()
    own = grounds.get(" ".join(words), set())
    for end in range(len(words) - 1, 0, -1):
        around = grounds.get(" ".join(words[:end])) or grounds.get(words[end - 1])
        if around:
            return own | around
    return own or set(PAGE)


def text_on_grounds() -> set[tuple[str, str]]:
    """Every pair of names that the sheet may put on the screen as text and what is behind it."""
    grounds: dict[str, set[str]] = {}
    for selector, declarations in rules():
        ground = named(declarations, "background")
        if ground is not None:
            grounds.setdefault(plain(selector), set()).add(ground)
    for shape, of_shape in (
        (selector, named(declarations, "fill")) for selector, declarations in rules() if selector.endswith(" rect")
    ):
        if of_shape is not None:
            grounds.setdefault(f"{shape.removesuffix(' rect')} text".replace(".graph ", ""), set()).add(of_shape)
    pairs = {(text, ground) for text in INHERITED for ground in PAGE}
    coloured = set()
    for selector, declarations in rules():
        text = named(declarations, "fill") if is_text(selector) else named(declarations, "color")
        if text is None:
            continue
        behind = named(declarations, "background")
        shape = plain(selector).removeprefix(".graph ")
        coloured.add(shape)
        pairs |= {(text, ground) for ground in ({behind} if behind else grounds_of(shape, grounds))}
    for selector, behind in grounds.items():
        if selector not in coloured and not selector.endswith(tuple(DRAWN)):
            pairs |= {("text", each) for each in behind}
    return pairs


DRAWN = (".light", ".light.on", ".live nav")
"""Grounds without text, and one whose every text has a colour of its own."""
TEXT_ON_GROUNDS = sorted(text_on_grounds())
GRAPHICS_ON_GROUNDS = [("strong", "paper"), ("fill", "paper"), ("accent", "ground"), ("text", "track")]


def colours(scheme: str) -> dict[str, str]:
    """The names of one scheme; the dark one replaces those of the light one."""
    blocks = re.findall(r":root \{(.*?)\}", SHEET, re.DOTALL)
    light = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[0]))
    return light if scheme == "light" else {**light, **dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[1]))}


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_of_black_and_white_is_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), TEXT_ON_GROUNDS)
def test_text_has_the_contrast_of_wcag_aa(scheme: str, text: str, ground: str) -> None:
    names = colours(scheme)

    assert contrast(names[text], names[ground]) >= TEXT_AA


def test_the_pairs_are_those_of_the_sheet() -> None:
    """They were written by hand, so a new rule was not looked at."""
    assert {("good", "good-tint"), ("bar-soft", "bar"), ("bad", "bad-tint"), ("paper", "accent")} <= set(
        TEXT_ON_GROUNDS
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("mark", "ground"), GRAPHICS_ON_GROUNDS)
def test_what_is_drawn_has_the_contrast_of_wcag_aa(scheme: str, mark: str, ground: str) -> None:
    names = colours(scheme)

    assert contrast(names[mark], names[ground]) >= GRAPHIC_AA


def test_the_sheet_is_small_and_loads_nothing() -> None:
    assert len(SHEET.encode()) <= MOST_BYTES
    assert "url(" not in SHEET
    assert "@import" not in SHEET


def test_every_colour_that_is_used_is_declared() -> None:
    assert set(re.findall(r"var\(--([\w-]+)\)", SHEET)) <= set(colours("dark"))
