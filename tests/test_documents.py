"""The generated parts of the documents: which values a key takes, and what a command requires."""

from __future__ import annotations

import pytest

from .documents import command_reference, config_tables


def test_a_choice_that_may_be_null_lists_its_values() -> None:
    """It was shown as a list."""
    assert "| `web.auth` | `simple`, `token`, null |" in config_tables()


def test_required_options_and_optional_arguments_are_marked() -> None:
    """`--role` looked optional, and the daemon required."""
    pytest.importorskip("pyarrow", reason="the commands of the extra spark are in the reference")
    reference = command_reference()

    assert "`dispatcher token new NAME --role ROLE [OPTIONS]`" in reference
    assert "| `--role` | required |" in reference
    assert "`dispatcher status [DAEMON] [OPTIONS]`" in reference
