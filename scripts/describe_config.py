"""Rewrites the comments in config/resourcemanager.yaml: above each key, the description of its field in the model.

Values, and comments that no key follows, stay unchanged.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from statemachines.resourcemanager import ResourceManagerConfig

CONFIG = Path(__file__).parents[1] / "config" / "resourcemanager.yaml"
WIDTH = 120

_KEY = re.compile(r"( *)(- )?([a-z_]+):( .*)?")


def described(text: str) -> str:
    """The YAML with each key's comment replaced by its description."""
    lines: list[str] = []
    comment: list[str] = []
    above: list[tuple[int, type[BaseModel] | None]] = [(-1, ResourceManagerConfig)]
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line)
            continue
        key = _KEY.fullmatch(line)
        if key is not None:
            depth = len(key[1]) + len(key[2] or "")
            while above[-1][0] >= depth:
                above.pop()
            model = above[-1][1]
            field = None if model is None else model.model_fields.get(key[3])
            if field is not None:
                comment = _comment(field.description or "", key[1])
                above.append((depth, _model_in(field.annotation)))
        lines += [*comment, line]
        comment = []
    return "\n".join([*lines, *comment]) + "\n"


def _comment(description: str, indent: str) -> list[str]:
    # A literal value or a call at the beginning keeps its case.
    first = description[:1].upper() if re.match(r"[a-z]+[ ,]", description) else description[:1]
    sentence = first + description[1:].removesuffix(".") + "."
    head = f"{indent}# "
    return textwrap.wrap(
        sentence, WIDTH, initial_indent=head, subsequent_indent=head, break_on_hyphens=False, break_long_words=False
    )


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg)) is not None), None)


if __name__ == "__main__":
    CONFIG.write_text(described(CONFIG.read_text(encoding="utf-8")), encoding="utf-8")
