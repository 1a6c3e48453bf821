"""The shared style sheet: legible in both schemes, small, and without anything from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dispatcher

pytestmark = pytest.mark.long

SHEET = (Path(dispatcher.__file__).parent / "pages/static/style.css").read_text(encoding="utf-8")
MOST_BYTES = 26_000
ON_THE_PAGE = ("text", "soft", "accent", "good", "warn", "bad")
TEXTS = {
    "paper": ON_THE_PAGE,
    "ground": ON_THE_PAGE,
    "tint": ("text", "accent"),
    "good-tint": ("good",),
    "warn-tint": ("warn",),
    "bad-tint": ("text", "bad"),
    "track": ("text",),
    "bar": ("bar-text", "bar-soft"),
    "accent": ("paper",),
}
"""The colours of the texts on each ground; `assert_fits` measures each text of the pages as a browser draws it."""
GRAPHICS = {"paper": ("strong", "fill"), "ground": ("accent",), "track": ("text",)}
NEEDED = [
    (least, ground, top)
    for least, pairs in ((4.5, TEXTS), (3.0, GRAPHICS))
    for ground in pairs
    for top in pairs[ground]
]


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
@pytest.mark.parametrize(("least", "ground", "top"), NEEDED)
def test_what_is_written_and_drawn_has_the_contrast_of_wcag_aa(
    scheme: str, least: float, ground: str, top: str
) -> None:
    names = colours(scheme)

    assert contrast(names[top], names[ground]) >= least


def test_the_sheet_is_small_and_loads_nothing() -> None:
    assert len(SHEET.encode()) <= MOST_BYTES
    assert "url(" not in SHEET
    assert "@import" not in SHEET


def test_every_colour_that_is_used_is_declared() -> None:
    assert set(re.findall(r"var\(--([\w-]+)\)", SHEET)) <= set(colours("dark"))
