"""Pages need the extra `web`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")
pytest.importorskip("jinja2", reason="the extra web is not installed")

from ..ops.client import Hanging, hanging
from ..ops.shop import Shop, running_shop


@pytest.fixture
def shop(alone: None, tmp_path: Path) -> Iterator[Shop]:
    with running_shop(tmp_path / "letters") as found:
        yield found


@pytest.fixture
def central(alone: None) -> Iterator[Hanging]:
    with hanging("central") as found:
        yield found
