"""`dispatcher config list|show`: the example configuration that comes with the package."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated

import typer

from dispatcher.cli.console import echo, echo_text
from dispatcher.errors import ConfigError

config = typer.Typer(no_args_is_help=True, help="Print the example configuration, to start your own from.")


@config.command("list")
def list_names() -> None:
    """Print the names of the examples."""
    for name in _examples():
        echo(name)


@config.command()
def show(name: Annotated[str, typer.Argument(help="resourcemanager, replay, logging, ...: see `list`")]) -> None:
    """Print an example."""
    examples = _examples()
    file = examples.get(name.removesuffix(".yaml"))
    if file is None:
        raise ConfigError(f"no example configuration {name!r}; expected one of {', '.join(examples)}")
    echo_text(file.read_text(encoding="utf-8"))


def _examples() -> dict[str, Traversable]:
    # The files of the repository's folder `config`: a link in the working tree, a folder in a wheel.
    files = (resources.files("dispatcher") / "examples").iterdir()
    found = {file.name.removesuffix(".yaml"): file for file in files if file.name.endswith(".yaml")}
    return dict(sorted(found.items()))
