"""The colours of the pages of reports and sweeps are legible in both schemes."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from pipeline.report.plots.plot_style import COLOURS, PALE

GRAPHIC_AA = 3.0
SHARED = resources.files("dispatcher.pages").joinpath("static/style.css").read_text(encoding="utf-8")
OWN = resources.files("pipeline.report.page").joinpath("page.css").read_text(encoding="utf-8")


def colours(sheet: str, scheme: str) -> dict[str, str]:
    """The names of one scheme; the dark one replaces those of the light one."""
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", sheet, re.DOTALL)[:2]
    )
    return light if scheme == "light" else light | dark


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", [*COLOURS, PALE, "heat"])
def test_every_colour_of_the_plots_stands_out_from_the_panel(name: str, scheme: str) -> None:
    mark, paper = luminance(colours(OWN, scheme)[name]), luminance(colours(SHARED, scheme)["paper"])

    assert (max(mark, paper) + 0.05) / (min(mark, paper) + 0.05) >= GRAPHIC_AA


@pytest.mark.parametrize("name", [*COLOURS, PALE, "over"])
def test_every_colour_of_the_plots_is_a_class(name: str) -> None:
    assert re.search(rf"\.{name} \{{ --k: var\(--\w+\)", OWN)


def test_every_colour_that_is_used_is_declared() -> None:
    declared = {**colours(SHARED, "dark"), **colours(OWN, "dark")}

    assert set(re.findall(r"var\(--([\w-]+)\)", OWN)) - {"k", "h"} <= set(declared)


def test_dark_colours_are_not_printed() -> None:
    for sheet in (SHARED, OWN):
        assert re.findall(r"@media ([^{]*prefers-color-scheme: dark[^{]*) \{", sheet) == [
            "screen and (prefers-color-scheme: dark)"
        ]


@pytest.mark.parametrize("row_px", [15, 19, 22, 24, 30, 42, 54])
def test_names_are_as_high_as_their_rows(row_px: int) -> None:
    assert f".rows-{row_px} li {{ line-height: {row_px}px" in OWN
