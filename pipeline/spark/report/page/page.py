"""The report's page: its head and its sections."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.spark.report.page.formats import count, duration, moment
from pipeline.spark.report.page.page_sections import PageData, sections_of
from pipeline.spark.report.page.page_views import Figure
from pipeline.spark.report.page.template import render

DAMAGE_SHOWN = 20
_REAL_FROM_NS = 31_536_000_000_000_000  # an earlier time (before 1971) comes from a virtual clock, which starts at 0


def render_page(data: PageData, figures: Sequence[Figure]) -> str:
    """Render the page as text, to be written in UTF-8. Deterministic."""
    damage = [Figure("Damage", count(len(data.damage)), "skipped in the journal", "bad")] if data.damage else []
    return render(
        title="Resource manager report",
        subtitle=_subtitle(data),
        figures=[*damage, *figures],
        damage=data.damage[:DAMAGE_SHOWN],
        damage_left_out=count(len(data.damage) - DAMAGE_SHOWN) if len(data.damage) > DAMAGE_SHOWN else "",
        sections=sections_of(data),
        why_empty="the journal has no such rows",
    )


def _subtitle(data: PageData) -> str:
    if data.first_at is None or data.last_at is None:
        return f"Journal {data.journal}, which is empty."
    compared = f" Compared with {data.compared_with}." if data.compared_with else ""
    if data.first_at < _REAL_FROM_NS:
        covered = f"{duration((data.last_at - data.first_at) / 1e9)} of virtual time"
    else:
        covered = f"from {moment(data.first_at)} to {moment(data.last_at)} in the clock of the run"
    return f"Journal {data.journal}, {covered}.{compared}"
