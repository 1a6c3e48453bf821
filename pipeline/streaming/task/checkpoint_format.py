"""The format of a checkpoint's file: a header line with length and checksum, then JSON.

The values of elements and the positions of inputs go through a serializer. The default one writes JSON and rejects
what JSON would alter, so reading a checkpoint runs no foreign code. PickleSerializer accepts nearly everything and
trusts the folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark
from pipeline.streaming.errors import CheckpointError, DamagedCheckpointError

FORMAT: Final = "stream-task-checkpoint"
VERSION: Final = 1
_ATOMS: Final = frozenset((type(None), bool, int, float, str))


class Serializer(Protocol):
    """Converts values to JSON and back. `name` is stored: only a serializer of that name reads the checkpoint."""

    @property
    def name(self) -> str: ...

    def dump(self, value: Any) -> Any:
        """`value` as None, bool, int, float, str, lists and dicts with str keys. Called on the mailbox thread."""

    def load(self, stored: Any) -> Any:
        """The value that was dumped."""


class JsonSerializer:
    """Stores None, bool, int, float, str, lists and dicts with str keys as they are; rejects anything else.

    That includes values that JSON would alter: tuples, subclasses, and dicts with other keys.
    """

    name = "json"

    def dump(self, value: Any) -> Any:
        """Raises CheckpointError, naming the part, if a part of the value would be altered or lost."""
        try:
            _check_json(value, "value")
        except RecursionError:
            raise CheckpointError("a value is nested too deeply, or contains itself; JSON cannot hold it") from None
        return value

    def load(self, stored: Any) -> Any:
        return stored


class PickleSerializer:
    """Stores whatever pickle accepts. Anyone who can write to the folder can run code in the task."""

    name = "pickle"

    def dump(self, value: Any) -> Any:
        return base64.b64encode(pickle.dumps(value)).decode("ascii")

    def load(self, stored: Any) -> Any:
        return pickle.loads(base64.b64decode(stored))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a task between two of its mails."""

    checkpoint_id: int
    task: str
    """The task's name; another task does not restore it."""
    taken_at_ms: int
    """By the task's processing-time service."""
    input_state: Any
    operator_states: list[list[StreamElement[Any]]] = field(default_factory=list)
    """For each operator, the head first: the elements taken in and not finished."""
    outputs: int = 0
    """Records emitted to the output, in this run and in those it continues."""
    output_state: Any = None
    is_savepoint: bool = False
    is_finished: bool = False
    """The input had ended and everything was processed."""


def encode(checkpoint: Checkpoint, serializer: Serializer) -> bytes:
    """The content of a checkpoint's file.

    Raises:
        CheckpointError: the serializer rejects a value.
    """
    body = {
        "id": checkpoint.checkpoint_id,
        "task": checkpoint.task,
        "taken_at_ms": checkpoint.taken_at_ms,
        "serializer": serializer.name,
        "input": _dump(serializer, checkpoint.input_state, "the input's state"),
        "operators": [
            [_dump_element(serializer, element, f"operator {index}") for element in elements_to_lists(elements)]
            for index, elements in enumerate(checkpoint.operator_states)
        ],
        "outputs": checkpoint.outputs,
        "output": _dump(serializer, checkpoint.output_state, "the output's state"),
        "savepoint": checkpoint.is_savepoint,
        "finished": checkpoint.is_finished,
    }
    try:
        data = json.dumps(body, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {checkpoint.checkpoint_id} cannot be written as JSON: {error}") from error
    return f"{FORMAT} {VERSION} {len(data)} {hashlib.sha256(data).hexdigest()}\n".encode("ascii") + data


def decode(data: bytes, serializer: Serializer, where: str) -> Checkpoint:
    """The checkpoint in a file's content; `where` names the file in errors.

    Raises:
        DamagedCheckpointError: the content was cut off or changed.
        CheckpointError: the content is intact, but of another format, version or serializer.
    """
    head, _, body = data.partition(b"\n")
    words = head.split(b" ")
    if words[0] != FORMAT.encode("ascii"):
        if FORMAT.encode("ascii").startswith(data[: len(FORMAT)]) or not data.strip(b"\0"):
            raise DamagedCheckpointError(f"{where} is cut off: {len(data)} bytes")
        raise CheckpointError(f"{where} is not a checkpoint: it begins with {data[:32]!r}, not with {FORMAT!r}")
    if len(words) > 1 and words[1].isdigit() and int(words[1]) != VERSION and len(words) > 2:
        raise CheckpointError(
            f"{where} has version {int(words[1])} of the format; this release reads version {VERSION}. "
            "Run the release that wrote it, or give the task an empty folder."
        )
    if words[1:] != [b"%d" % VERSION, b"%d" % len(body), hashlib.sha256(body).hexdigest().encode("ascii")]:
        raise DamagedCheckpointError(f"{where} is damaged: {len(body)} bytes that do not match {head[:120]!r}")
    return _checkpoint_of(json.loads(body), serializer, where)


def elements_to_lists(elements: Iterable[StreamElement[Any]]) -> list[list[Any]]:
    """Elements as lists: [value, timestamp_ms] for a record, [timestamp_ms] for a watermark."""
    return [
        [element.timestamp_ms] if isinstance(element, Watermark) else [element.value, element.timestamp_ms]
        for element in elements
    ]


def elements_from_lists(lists: Iterable[list[Any]]) -> list[StreamElement[Any]]:
    return [Watermark(*entry) if len(entry) == 1 else StreamRecord(*entry) for entry in lists]


def _checkpoint_of(body: dict[str, Any], serializer: Serializer, where: str) -> Checkpoint:
    if body["serializer"] != serializer.name:
        raise CheckpointError(
            f"{where} was written by serializer {body['serializer']!r}, and the storage has {serializer.name!r}. "
            f"Make the storage with the serializer that wrote it."
        )
    load = serializer.load
    try:
        return Checkpoint(
            checkpoint_id=body["id"],
            task=body["task"],
            taken_at_ms=body["taken_at_ms"],
            input_state=load(body["input"]),
            operator_states=[
                elements_from_lists([[load(entry[0]), entry[1]] if len(entry) == 2 else entry for entry in state])
                for state in body["operators"]
            ],
            outputs=body["outputs"],
            output_state=load(body["output"]),
            is_savepoint=body["savepoint"],
            is_finished=body["finished"],
        )
    except Exception as error:  # the checksum matched, so the serializer failed: a class was removed, for example
        raise CheckpointError(f"{where}: serializer {serializer.name!r} cannot read a value: {error!r}") from error


def _dump_element(serializer: Serializer, entry: list[Any], where: str) -> list[Any]:
    return [_dump(serializer, entry[0], where), entry[1]] if len(entry) == 2 else entry


def _dump(serializer: Serializer, value: Any, where: str) -> Any:
    try:
        return serializer.dump(value)
    except Exception as error:
        raise CheckpointError(f"{where} cannot be stored by serializer {serializer.name!r}: {error}") from error


def _check_json(value: Any, path: str) -> None:
    kind = type(value)
    if kind in _ATOMS:
        return
    if kind is list:
        for index, item in enumerate(value):
            _check_json(item, f"{path}[{index}]")
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise CheckpointError(f"{path} has the key {key!r}; JSON has str keys only. {_ADVICE}")
            _check_json(item, f"{path}[{key!r}]")
    else:
        raise CheckpointError(f"{path} is a {kind.__qualname__}, which JSON would not give back. {_ADVICE}")


_ADVICE: Final = (
    "Use None, bool, int, float, str, list and dict, or make the storage with serializer=PickleSerializer()."
)
