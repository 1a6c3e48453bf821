"""The README's examples run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    module = ModuleType("readme")
    monkeypatch.setitem(sys.modules, "readme", module)  # where dataclasses look for the module of a class

    for block in blocks:
        exec(compile(block, str(README), "exec"), module.__dict__)

    assert len(blocks) >= 3
