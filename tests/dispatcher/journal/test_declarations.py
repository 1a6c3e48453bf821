"""Classes of every shape are declared and come back equal, or are refused with a TypeError that names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from typing import Annotated, Any, Generic, Literal, TypeVar

import pydantic.dataclasses
import pytest
from pydantic import BaseModel, Field, RootModel, ValidatorFunctionWrapHandler, create_model, model_validator
from typing_extensions import TypedDict

from ...kit.journals import codec_of


class Job(Enum):
    STARTED = 1


T = TypeVar("T")


def before(cls: Any, value: Any) -> Any:
    return value


def wrap(cls: Any, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    return handler(value)


def after(self: Any) -> Any:
    return self


VALIDATORS: dict[str, Any] = {
    "before": model_validator(mode="before")(classmethod(before)),  # type: ignore[arg-type]
    "wrap": model_validator(mode="wrap")(classmethod(wrap)),  # type: ignore[arg-type]
    "after": model_validator(mode="after")(after),
}
MODES = [(), ("before",), ("wrap",), ("after",), ("before", "wrap", "after")]


class Empty(BaseModel):
    pass


class Fixed(BaseModel):
    @property
    def type(self) -> Job:
        return Job.STARTED


@dataclass
class FixedData:
    @property
    def type(self) -> Job:
        return Job.STARTED


class Tree(BaseModel):
    type: Job
    children: list[Tree] = []


@dataclass
class DataTree:
    type: Job
    children: list[DataTree] = field(default_factory=list)


@pydantic.dataclasses.dataclass
class PydanticTree:
    type: Job
    child: PydanticTree | None = None


class Ping(BaseModel):
    type: Job
    pong: Pong | None = None


class Pong(BaseModel):
    ping: Ping | None = None
    empty: Empty = Empty()


class Box(BaseModel, Generic[T]):
    type: Job
    value: T


class Options(TypedDict, total=False):
    size: int
    next: Options


@dataclass
class WithOptions:
    type: Job
    options: Options


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    puppies: list[Dog] = []


class Owner(BaseModel):
    type: Job
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    other: int | str | Owner | None = None


class Numbers(RootModel[list[int]]):
    @property
    def type(self) -> Job:
        return Job.STARTED


class Paths(RootModel[dict[str, "Paths"]]):
    pass


class WithPaths(BaseModel):
    type: Job
    paths: Paths


for late in (Ping, Pong, Tree, Owner, Paths, WithPaths):
    late.model_rebuild()

EVENTS = [
    Fixed(),
    FixedData(),
    Tree(type=Job.STARTED, children=[Tree(type=Job.STARTED)]),
    DataTree(Job.STARTED, [DataTree(Job.STARTED)]),
    PydanticTree(Job.STARTED, PydanticTree(Job.STARTED)),
    Ping(type=Job.STARTED, pong=Pong(ping=Ping(type=Job.STARTED))),
    Box(type=Job.STARTED, value=1),
    Box[int](type=Job.STARTED, value=1),
    Box[Tree](type=Job.STARTED, value=Tree(type=Job.STARTED)),
    WithOptions(Job.STARTED, {"size": 1, "next": {"size": 2}}),
    Owner(type=Job.STARTED, pet=Dog(puppies=[Dog()]), other=Owner(type=Job.STARTED, pet=Cat())),
    Numbers([1, 2]),
    WithPaths(type=Job.STARTED, paths=Paths({"a": Paths({})})),
]


def comes_back(event: Any) -> None:
    codec = codec_of(type(event), of=Job)

    back = codec.decode(codec.encode(event))

    assert type(back) is type(event)
    assert back == event


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_of_any_shape_comes_back(event: Any) -> None:
    comes_back(event)


def model(validators: dict[str, Any], **fields: Any) -> Any:
    return create_model("Made", __validators__=validators, **fields)


def pydantic_dataclass(validators: dict[str, Any], **fields: Any) -> Any:
    annotations = {name: kind for name, (kind, _) in fields.items()}
    defaults = {name: default for name, (_, default) in fields.items() if default is not ...}
    return pydantic.dataclasses.dataclass(
        type("Made", (), {"__annotations__": annotations, "__module__": __name__, **defaults, **validators})
    )


@pytest.mark.parametrize("make", [model, pydantic_dataclass])
def test_validators_of_a_class_and_of_a_class_in_it_keep_no_event_from_coming_back(make: Callable[..., Any]) -> None:
    """A class with an `after` or `wrap` validator was refused with `KeyError: 'cls'`."""
    for outer, inner in product(MODES, MODES):
        part = make({mode: VALIDATORS[mode] for mode in inner}, size=(int, 1))
        whole = make({mode: VALIDATORS[mode] for mode in outer}, type=(Job, ...), part=(part | None, None))

        comes_back(whole(type=Job.STARTED, part=part(size=2)))
        comes_back(whole(type=Job.STARTED))


def test_a_class_that_refers_to_an_undefined_one_is_refused_by_name() -> None:
    class Unfinished(BaseModel):
        type: Job
        missing: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match=r"^Unfinished cannot be kept in a journal: it refers to a class that is not"):
        codec_of(Unfinished, of=Job)


def test_a_field_that_cannot_be_kept_is_named_behind_a_validator_and_a_cycle() -> None:
    class Node(BaseModel):
        type: Job
        call: Callable[[], int]
        after = VALIDATORS["after"]

    class Chain(BaseModel):
        type: Job
        links: list[Node] = []

    for kind in (Node, Chain):
        with pytest.raises(TypeError, match=r"^Node\.call cannot be kept in a journal: JSON does not give back a call"):
            codec_of(kind, of=Job)
