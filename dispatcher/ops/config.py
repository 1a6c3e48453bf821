"""Settings of the ops API."""

from __future__ import annotations

from pydantic import Field

from dispatcher.config import ConfigModel
from dispatcher.metrics.transition_ring import KEPT


class OpsConfig(ConfigModel):
    """Settings of the ops API and its door."""

    enabled: bool = Field(
        default=True, description="open a door for `dispatcher ps`, `status` and `top`, if the extra `web` is installed"
    )
    show_payloads: bool = Field(default=False, description="include the payloads of events in /journal/tail")
    control: bool = Field(
        default=False,
        description="let administrators make changes by the ops API and the pages: change log levels, post dead "
        "letters again or discard them, cancel scheduled posts, stop a dispatcher or the daemon",
    )
    transitions_kept: int = Field(
        default=KEPT,
        ge=0,
        le=10_000_000,
        description="how many of the process's last transitions to keep in memory, up to 160 bytes each: they are "
        "the history of entities without a journal; 0 disables it",
    )
