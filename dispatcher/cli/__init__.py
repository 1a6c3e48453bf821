"""The `dispatcher` command and what its subcommands share. Importing this needs no extra."""

from dispatcher.cli.command import USER_ERROR, main

__all__ = ["USER_ERROR", "main"]
