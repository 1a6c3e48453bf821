"""`dispatcher config list|show`: the example configuration of daemons and their monitoring."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated, Final

import typer

from dispatcher.cli.console import echo, echo_text
from dispatcher.errors import ConfigError

FOLDERS: Final = ("", "grafana", "systemd")
"""Folders with examples, below the repository's `config`."""

config: typer.Typer = typer.Typer(no_args_is_help=True, help="Print the example configuration, to start your own from.")


@config.command("list")
def list_names() -> None:
    """Print the names of the examples."""
    for name in _examples():
        echo(name)


@config.command()
def show(
    name: Annotated[str, typer.Argument(help="resourcemanager, alerts, grafana/dispatcher.json, ...: see `list`")],
) -> None:
    """Print an example."""
    examples = _examples()
    file = examples.get(name.removesuffix(".yaml"))
    if file is None:
        raise ConfigError(f"no example configuration {name!r}; expected one of {', '.join(examples)}")
    echo_text(file.read_text(encoding="utf-8"))


def _examples() -> dict[str, Traversable]:
    # The files of the repository's folder `config`: a link in the working tree, a folder in a wheel.
    root = resources.files("dispatcher") / "examples"
    folders = [(name, root / name if name else root) for name in FOLDERS]
    found = {
        (f"{name}/" if name else "") + file.name.removesuffix(".yaml"): file
        for name, folder in folders
        if folder.is_dir()
        for file in folder.iterdir()
        if file.is_file()
    }
    return dict(sorted(found.items()))
