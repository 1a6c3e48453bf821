"""Output of the subcommands: lines, tables of figures, and columns of plain text. Needs the extra `cli`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_MOST_WIDTH = 10_000


def standard_output() -> Console:
    """The console a command prints to. In a file or a pipe, which has no width, a table row is one line."""
    console = Console()
    if not console.is_terminal:
        console.width = _MOST_WIDTH
    return console


def say(console: Console, line: str, style: str | None = None) -> None:
    """Print a line literally, without interpreting markup."""
    # Not wrapped: a terminal does not open a path or a URL that is split over two lines.
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def figures_table(*titles: str, names: int = 1) -> Table:
    """A table without rules: `names` columns of text, then columns of numbers."""
    table = Table(box=None, pad_edge=False)
    for position, title in enumerate(titles):
        table.add_column(Text(title), justify="left" if position < names else "right")
    return table


def summary_table() -> Table:
    """A table without titles: a name, a number and a remark in each row."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for justify in ("left", "right", "left"):
        table.add_column(justify=justify)
    return table


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of left-aligned columns, for tables of any length."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
