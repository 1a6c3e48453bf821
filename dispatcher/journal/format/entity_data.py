"""The text of an entity's data, in the row of a transition: `{"version":1,"data":{...}}`, in this form alone."""

from __future__ import annotations

from typing import Final

_VERSION: Final = '{"version":'
_DATA: Final = ',"data":'


def data_text(version: int, fields: str) -> str:
    """`fields`: a JSON object."""
    return f"{_VERSION}{version}{_DATA}{fields}}}"


def version_in(text: str) -> int:
    """The version of the data."""
    return int(text.removeprefix(_VERSION).partition(_DATA)[0])


def fields_in(text: str) -> str:
    """The fields, a JSON object."""
    return text.partition(_DATA)[2][:-1]
