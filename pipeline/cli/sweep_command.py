"""`dispatcher sweep`: replays one workload under many settings, and compares the results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dispatcher.cli.console import cell, figures_table, say, standard_output
from dispatcher.errors import DispatcherError
from dispatcher.util.folders import drafts
from pipeline.cli.replay_command import SkipBadRows, WorkloadPath, in_figures, new_folder, read_input
from pipeline.cli.sessions import Master, open_spark
from pipeline.sweep.combinations import Combination, combine
from pipeline.sweep.settings import parse_settings
from statemachines.simulation.queues import in_words
from statemachines.simulation.workload import Workload

if TYPE_CHECKING:
    from pipeline.sweep.page import SweepRow


def sweep(
    workload: WorkloadPath,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=V1,V2",
            help="What to vary, at least once; every combination is run. KEY: scheduler (fifo, capacity), nodes (0.5: "
            "half of them, 50: 50 nodes), load (2: applications arrive twice as fast), or any configuration key, such "
            "as simulation.am_register_delay_ms.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for page and tables; by default a new one below `runs`.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Base configuration of all combinations.")] = None,
    skip_bad_rows: SkipBadRows = False,
    master: Master = "local[*]",
) -> None:
    """Replay a workload under every combination of settings, one per core, and compare the results.

    The capacity scheduler uses the configured queues, or by default the queues that the workload names.
    """
    console = standard_output()
    axes = parse_settings(settings or [])
    base, recorded = read_input(workload, config, console, skip_bad_rows=skip_bad_rows)
    combinations = combine(recorded, axes, base)
    folder = output or new_folder(f"{recorded.name}-sweep")
    try:  # before the runs, which would otherwise be wasted
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(folder, error) from error
    say(console, f"{in_figures(recorded)}; {len(combinations):,} combinations")
    derived = next((each.config.scheduler.queues for each in combinations if each.has_derived_queues), None)
    if derived is not None:
        say(console, in_words(derived))
    rows = _run(recorded, combinations, master, console)
    _print_comparison(rows, console)
    for path in _write(folder, recorded, rows):
        say(console, f"{'Page' if path.suffix == '.html' else 'Table'}: {path}")
    failed = sum(row["error"] is not None for row in rows)
    if failed:
        raise DispatcherError(f"{failed:,} of {len(rows):,} combinations failed; the table says why")


def _run(workload: Workload, combinations: Sequence[Combination], master: str, console: Console) -> list[SweepRow]:
    """The rows of all combinations, by number."""
    from pipeline.spark import prepare_executors
    from pipeline.spark.sweep import sweep as sweep_on_spark

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with open_spark(master) as spark:
        prepare_executors(spark)
        started_s = time.perf_counter()
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            bar.add_task(f"replaying {len(combinations):,} combinations")
            found = [row.asDict() for row in sweep_on_spark(spark, workload, combinations).collect()]
        took_s = time.perf_counter() - started_s
    runs_s = sum(row["wall_s"] or 0.0 for row in found)
    say(console, f"{len(found):,} runs of {runs_s:,.1f} s together took {took_s:,.1f} s")
    # Spark preserves neither the order of rows nor of a map's entries.
    settings = {combination.number: dict(combination.settings) for combination in combinations}
    return sorted(({**row, "settings": settings[row["number"]]} for row in found), key=lambda row: row["number"])


def _print_comparison(rows: Sequence[SweepRow], console: Console) -> None:
    from pipeline.sweep.page import best_numbers, shown_columns

    ran = [row for row in rows if row["error"] is None]
    columns = shown_columns(ran)
    best = {column.key: best_numbers(column, ran) for column in columns}
    keys = list(rows[0]["settings"])
    table = figures_table(*keys, *(column.title for column in columns), names=len(keys))
    for row in rows:
        cells = [cell(row["settings"][key]) for key in keys]
        for column in columns:
            is_bad = column.is_bad and bool(row[column.key])
            is_best = row["number"] in best[column.key]
            cells.append(cell(column.show(row[column.key]), "red" if is_bad else "green" if is_best else ""))
        table.add_row(*cells)
    console.print(table)
    for row in rows:
        if row["error"] is not None:
            say(console, f"combination {row['number']} failed: {row['error']}")


def _write(folder: Path, workload: Workload, rows: Sequence[SweepRow]) -> list[Path]:
    """Write the page, and the table as Parquet and CSV; returns their paths."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    from pipeline.spark.sweep import result_schema
    from pipeline.sweep.page import render_sweep_page

    keys = list(rows[0]["settings"])
    table = pa.Table.from_pylist([_flat(row) for row in rows], schema=result_schema(keys))
    page, *tables = names = ("sweep.html", "sweep.parquet", "sweep.csv")
    try:
        with drafts(folder, *names, what="sweep") as place:
            (place / page).write_text(render_sweep_page(workload.name, rows), encoding="utf-8")
            parquet.write_table(table, place / tables[0])
            csv.write_csv(table, place / tables[1])
    except OSError as error:
        raise _not_writable(folder, error) from error
    return [folder / name for name in names]


def _flat(row: SweepRow) -> dict[str, Any]:
    """The row with one column per setting, prefixed so that no other column has its name."""
    figures = {key: value for key, value in row.items() if key != "settings"}
    return figures | {f"set {key}": value for key, value in row["settings"].items()}


def _not_writable(folder: Path, error: OSError) -> DispatcherError:
    return DispatcherError(
        f"{folder}: the sweep cannot be written here ({error.strerror or error}). Name another folder for it."
    )
