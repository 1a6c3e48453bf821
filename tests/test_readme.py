"""The README's examples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_run_one_after_the_other() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "readme"}

    for block in blocks:
        exec(compile(block, str(README), "exec"), names)

    assert len(blocks) >= 3
