"""The pipeline's subcommands of the `dispatcher` command."""
