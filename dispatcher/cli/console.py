"""Output of the subcommands: lines, tables of figures, and columns of plain text. Needs the extra `cli`.

Names come from the journals, logs, workloads and folders of others. Every function here escapes what would change the
terminal or the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import Enum

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dispatcher.util.terminal import printable
from dispatcher.util.units import NS_PER_S

_MOST_WIDTH = 10_000


class RowFormat(Enum):
    """`--format` of commands that print rows."""

    table = "table"
    json = "json"


def standard_output() -> Console:
    """The console a command prints to. In a file or a pipe, which has no width, a table row is one line."""
    console = Console()
    if not console.is_terminal:
        console.width = _MOST_WIDTH
    return console


def echo(line: str, *, err: bool = False) -> None:
    """Print a line to standard output, or standard error."""
    typer.echo(printable(line), err=err)


def echo_text(text: str) -> None:
    """Print lines of the product's own, as they are: nothing foreign may be in them."""
    typer.echo(text, nl=False)


def echo_json(line: str) -> None:
    """Print one line of JSON. Inside its strings, what is not printable becomes a JSON escape."""
    typer.echo(line if line.isprintable() else "".join(map(_json_escaped, line)))


def say(console: Console, line: str, style: str | None = None) -> None:
    """Print a line literally, without interpreting markup."""
    # Not wrapped: a terminal does not open a path or a URL that is split over two lines.
    console.print(printable(line), style=style, markup=False, highlight=False, soft_wrap=True)


def cell(text: str, style: str = "") -> Text:
    """A cell of a table: the text literally, without interpreting markup."""
    return Text(printable(text), style=style)


def figures_table(*titles: str, names: int = 1) -> Table:
    """A table without rules: `names` columns of text, then columns of numbers."""
    table = Table(box=None, pad_edge=False)
    for position, title in enumerate(titles):
        table.add_column(cell(title), justify="left" if position < names else "right")
    return table


def summary_table() -> Table:
    """A table without titles: a name, a number and a remark in each row."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for justify in ("left", "right", "left"):
        table.add_column(justify=justify)
    return table


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of left-aligned columns, for tables of any length."""
    shown = [[printable(each) for each in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def time_text(at: int) -> str:
    """Unix ns as ISO 8601 in UTC, with microseconds."""
    try:
        text = datetime.fromtimestamp(at // NS_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):  # the clock of the run is foreign
        return f"{at} ns"
    return f"{text}.{at % NS_PER_S // 1000:06d}Z"


def _json_escaped(letter: str) -> str:
    if letter.isprintable():
        return letter
    code = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{code[at]:02x}{code[at + 1]:02x}" for at in range(0, len(code), 2))
