"""Each incident in turn, in a daemon with a door."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from .incidents import INCIDENTS, Incident, Shown

if TYPE_CHECKING:
    from dispatcher.ops import OpsDoor


@dataclass(frozen=True)
class Trouble:
    """A daemon with an incident."""

    shown: Shown
    door: OpsDoor


@pytest.fixture(params=INCIDENTS, ids=lambda incident: incident.__name__)
def trouble(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: None
) -> Iterator[Trouble]:
    pytest.importorskip("uvicorn", reason="the extra web is not installed")
    from dispatcher.ops import OpsDoor
    from dispatcher.web import WebConfig

    incident: Incident = request.param
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(TemporaryDirectory(prefix="run-"))  # a short path, as a Unix socket's has to be
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        door = stack.enter_context(OpsDoor(web=WebConfig(port=0), name="shop"))
        yield Trouble(stack.enter_context(incident(tmp_path)), door)
