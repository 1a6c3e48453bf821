"""The shared style sheet: legible in both schemes, small, and without anything from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import dispatcher

pytestmark = pytest.mark.long

SHEET = (Path(dispatcher.__file__).parent / "pages/static/style.css").read_text(encoding="utf-8")
MOST_BYTES = 26_000
PAGE = {"paper", "ground"}
"""What text is on where no rule says otherwise: panels, and the page around them."""
DRAWN = {".light", ".light.on", ".live nav"}
"""Grounds without text, and one whose every text has a colour of its own."""


def rules() -> Iterator[tuple[str, str]]:
    """(selector, declarations) of the whole sheet, one selector each, without pseudo-classes and attributes."""
    text = re.sub(r"/\*.*?\*/|@media[^{]*\{", "", SHEET, flags=re.DOTALL)
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
        for selector in selectors.split(","):
            yield re.sub(r"::?[\w-]+(\([^)]*\))?|\[[^\]]*\]|\.graph ", "", selector).strip(), body


def texts_on_grounds() -> set[tuple[str, str]]:
    """Every pair of names that the sheet may put on the screen as text and what is behind it."""
    texts: dict[str, set[str]] = {}
    grounds: dict[str, set[str]] = {}
    for selector, body in rules():
        is_drawn = re.search(r"(\btext|\.number|\.number\.wrong|\.label)$", selector)
        for kind, property in ((texts, "fill" if is_drawn else "color"), (grounds, "background")):
            if colour := re.search(rf"(?:^|[; ]){property}: var\(--([\w-]+)\)", body):
                kind.setdefault(selector, set()).add(colour[1])
        if selector.endswith(" rect") and (colour := re.search(r"fill: var\(--([\w-]+)\)", body)):
            grounds.setdefault(selector.removesuffix("rect") + "text", set()).add(colour[1])
    pairs = set(product(("text", "soft", "accent"), PAGE))
    for selector in {*texts, *grounds} - DRAWN:
        words = selector.split()
        outer = [each for end in range(len(words) - 1, 0, -1) for each in (" ".join(words[:end]), words[end - 1])]
        around = next((grounds[each] for each in outer if each in grounds), set())
        pairs |= set(product(texts.get(selector, {"text"}), grounds.get(selector, set()) | around or PAGE))
    return pairs


TEXTS = texts_on_grounds()
GRAPHICS = {("strong", "paper"), ("fill", "paper"), ("accent", "ground"), ("text", "track")}
NEEDED = [(least, *pair) for least, pairs in ((4.5, TEXTS), (3.0, GRAPHICS)) for pair in sorted(pairs)]


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
@pytest.mark.parametrize(("least", "top", "ground"), NEEDED)
def test_what_is_written_and_drawn_has_the_contrast_of_wcag_aa(
    scheme: str, least: float, top: str, ground: str
) -> None:
    names = colours(scheme)

    assert contrast(names[top], names[ground]) >= least


def test_the_pairs_are_found_in_the_sheet() -> None:
    assert {("good", "good-tint"), ("bar-soft", "bar"), ("bad", "bad-tint"), ("paper", "accent")} <= TEXTS


def test_the_sheet_is_small_and_loads_nothing() -> None:
    assert len(SHEET.encode()) <= MOST_BYTES
    assert "url(" not in SHEET
    assert "@import" not in SHEET


def test_every_colour_that_is_used_is_declared() -> None:
    assert set(re.findall(r"var\(--([\w-]+)\)", SHEET)) <= set(colours("dark"))
