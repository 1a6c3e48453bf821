"""Errors of a state store; each message is one line that can be shown to a user."""

from __future__ import annotations

from pathlib import Path

from dispatcher.errors import DispatcherError


class StateStoreError(DispatcherError):
    """The file of a state store cannot be used."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        super().__init__(f"{path}: {problem}")


class StateStoreVersionError(StateStoreError):
    """The file was written by a newer version of this program."""

    def __init__(self, path: Path, found: int, supported: int) -> None:
        self.found = found
        self.supported = supported
        super().__init__(
            path,
            f"a state store of version {found}; this program supports versions up to {supported}. "
            "Run the version that wrote it, or give state_store.path another file.",
        )
