"""Results with named attributes: the fields of dataclasses and pydantic models."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RecordFields:
    """The fields of the instances of one class.

    `computed`: fields that a schema may name, but need not. `has_more`: an instance may have others, in `model_extra`.
    """

    names: tuple[str, ...]
    computed: tuple[str, ...] = ()
    has_more: bool = False


def record_fields(kind: Any) -> RecordFields | None:
    """The fields of a dataclass or a pydantic model; None for any other class."""
    if dataclasses.is_dataclass(kind):
        return RecordFields(tuple(field.name for field in dataclasses.fields(kind)))
    if is_model(kind):
        return RecordFields(
            tuple(kind.model_fields), tuple(kind.model_computed_fields), kind.model_config.get("extra") == "allow"
        )
    return None


def is_model(kind: type) -> bool:
    """Whether `kind` is a pydantic model. Does not import pydantic: if a model exists, it is imported."""
    pydantic: Any = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)
