"""What the write-ahead log accepts comes back equal in types and values; what would not is refused by name."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, get_type_hints
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    PrivateAttr,
    SecretStr,
    computed_field,
    create_model,
    field_validator,
)

from dispatcher import AsyncDispatcher, JournalConfig, JournalError, JournalWriter

from ...kit import tries
from ...kit.journals import codec_of

# Earlier versions of pydantic do not write a deque as JSON: an event with one is refused.
Queue = deque[int] if tuple(map(int, pydantic.VERSION.split(".")[:2])) >= (2, 14) else list[int]


class Job(Enum):
    STARTED = 1
    ENDED = "ended"


class Rights(Flag):
    READ = 1
    WRITE = 2


class Size(IntEnum):
    SMALL = 1


class Name(StrEnum):
    A = "a"


class Int(int):
    pass


class Pair(NamedTuple):
    a: int
    b: int


class EqualToAll:
    """As foreign as values get: equal to everything, with a repr that raises."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@dataclasses.dataclass
class Inner:
    number: int = 0
    part: Inner | None = None
    anything: Any = None


class InnerModel(BaseModel):
    number: int = 0
    tags: list[str] = []


@dataclasses.dataclass
class Loose:
    type: Job
    value: Any = None


@dataclasses.dataclass
class Plain:
    """Only fields of which the types of the values tell that they come back."""

    type: Job
    text: str = ""
    number: int = 0
    amount: float = 0.0
    flag: bool = False
    note: str | None = None
    at: datetime | None = None
    size: Size = Size.SMALL
    tags: list[str] = dataclasses.field(default_factory=list)
    sizes: tuple[int, ...] = ()
    names: frozenset[Name] = frozenset()
    shares: dict[str, float | None] = dataclasses.field(default_factory=dict)
    inner: InnerModel = dataclasses.field(default_factory=InnerModel)
    inners: list[InnerModel] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True, frozen=True)
class Slotted:
    type: Job
    text: str = ""
    number: int | None = None


class PlainModel(BaseModel):
    type: Job
    text: str = ""
    number: int = 0
    moments: dict[str, datetime] = {}


@dataclasses.dataclass
class Typed:
    """Fields that are compared."""

    type: Job
    keys: dict[int, str] = dataclasses.field(default_factory=dict)
    either: int | str | float | bool | None = None
    data: bytes = b""
    price: Decimal = Decimal(0)
    day: date = date(2000, 1, 1)
    hour: time = time(1)
    span: timedelta = timedelta(0)
    ident: UUID | None = None
    path: Path = Path("/")
    pair: Pair | None = None
    items: Sequence[int] = dataclasses.field(default_factory=list)
    queue: Queue = dataclasses.field(default_factory=Queue)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    order: OrderedDict[str, int] = dataclasses.field(default_factory=OrderedDict)
    groups: defaultdict[str, list[int]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    nested: set[tuple[int, ...]] = dataclasses.field(default_factory=set)
    inner: Inner = dataclasses.field(default_factory=Inner)
    rights: Rights = Rights.READ


CLASSES = (Loose, Plain, Slotted, PlainModel, Typed)


codec = partial(codec_of, of=Job)


def refusal(event: Any) -> str:
    """The message with which an event is refused: one line."""
    with pytest.raises(JournalError) as refused:
        codec(type(event)).encode(event)
    message = str(refused.value)
    assert "\n" not in message
    assert "cannot be kept in the journal" in message
    return message


def shape(value: Any) -> Any:
    """A value as tuples in which everything that makes it what it is is text: for a comparison that nothing fools."""
    kind = type(value).__qualname__
    if isinstance(value, Enum):
        return kind, value._name_, str(value._value_)
    if isinstance(value, datetime):
        offset = None if value.tzinfo is None else value.tzinfo.utcoffset(None)
        return kind, value.replace(tzinfo=None).isoformat(), value.fold, value.tzinfo is None, str(offset)
    if isinstance(value, float):
        return kind, "nan" if math.isnan(value) else value.hex()
    if isinstance(value, dict):
        factory = value.default_factory if isinstance(value, defaultdict) else None
        return kind, factory, tuple((shape(key), shape(part)) for key, part in value.items())
    if isinstance(value, (list, tuple, deque)):
        return kind, tuple(map(shape, value))
    if isinstance(value, (set, frozenset)):
        return kind, tuple(sorted(map(repr, map(shape, value))))
    if isinstance(value, BaseModel) or hasattr(value, "__dict__"):
        private = getattr(value, "__pydantic_private__", None)
        return kind, tuple(sorted((name, shape(part)) for name, part in vars(value).items())), shape(private)
    if dataclasses.is_dataclass(value):
        return kind, tuple(shape(getattr(value, field.name)) for field in dataclasses.fields(value))
    return kind, repr(value)


atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**64, -(2**200), Int(3), 1.0, 1, True, -0.0, math.nan, math.inf]),
    st.builds(pow, st.just(10), st.just(4300)),
    st.floats(),
    st.text(st.characters()),
    st.binary(max_size=4),
    st.datetimes(timezones=st.none() | st.timezones() | st.just(UTC)),
    st.datetimes(timezones=st.just(timezone(timedelta(minutes=90)))),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),  # a signalling one has no hash
    st.uuids(),
    st.sampled_from([*Job, *Rights, Rights.READ | Rights.WRITE, Size.SMALL, Name.A, "a", Path("/x")]),
)
hashable = st.recursive(atoms, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=2), max_leaves=4)
values = st.recursive(
    st.one_of(atoms, st.builds(Inner, atoms, st.none(), atoms), st.builds(InnerModel, number=st.integers())),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.sets(hashable, max_size=3),
        st.dictionaries(hashable, inner, max_size=3),
        st.lists(st.integers(), max_size=2).map(deque),
        st.builds(Pair, inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=2).map(OrderedDict),
    ),
    max_leaves=6,
)


jobs = st.sampled_from(Job)
nothing: st.SearchStrategy[Any] = st.nothing()


def of_types(kind: type, *names: str, also: st.SearchStrategy[Any] = nothing) -> dict[str, st.SearchStrategy[Any]]:
    """Values of the types of these fields, or of all but `type`, and others."""
    hints = get_type_hints(kind)
    return {name: st.from_type(hints[name]) | also for name in names or list(hints)[1:]}


events = st.one_of(
    st.builds(Loose, jobs, values),
    st.builds(Plain, jobs, **of_types(Plain, also=values)),
    st.builds(Slotted, jobs, **of_types(Slotted, also=values)),
    st.builds(
        PlainModel,
        type=jobs,
        **of_types(PlainModel, "text", "number"),
        moments=st.dictionaries(st.text(), st.datetimes(timezones=st.none() | st.timezones())),
    ),
    st.builds(
        lambda name, value: Typed(Job.STARTED, **{name: value}),
        st.sampled_from([field.name for field in dataclasses.fields(Typed)[1:]]),
        values,
    ),
    st.builds(
        Typed,
        jobs,
        **of_types(Typed, "keys", "either", "data", "price", "day", "hour", "span", "ident", "items", "nested"),
        counts=st.dictionaries(st.text(), st.integers()).map(Counter),
        inner=st.builds(Inner, st.integers(), st.builds(Inner), atoms),
        rights=st.sampled_from([Rights.READ, Rights.READ | Rights.WRITE]),
    ),
)


@dataclasses.dataclass
class Simple:
    """Each field has one way to be written."""

    type: Job
    text: str = ""
    number: int | None = None
    flag: bool = False
    size: Size = Size.SMALL
    name: Name | None = None


class SimpleModel(BaseModel):
    type: Job
    text: str | None = None
    number: int = 0


simple_events = st.one_of(
    st.builds(Simple, jobs, **of_types(Simple, also=atoms)),
    st.builds(SimpleModel, type=jobs, **of_types(SimpleModel)),
)


@pytest.mark.long
@given(simple_events)
@settings(max_examples=100)
@example(Simple(Job.ENDED, "\ud800"))
@example(Simple(Job.ENDED, number=10**4300))
@example(Simple(Job.ENDED, number=-(2**63) - 1, text='"\\\n\u2028\x00é'))
@example(Simple(Job.ENDED, "x" * 5000))
@example(Simple(Job.STARTED, Name.A))
@example(Simple(Job.STARTED, number=True))
def test_the_quick_way_of_writing_an_event_writes_the_same_and_refuses_the_same(event: Any) -> None:
    quick, usual = codec(Simple, SimpleModel), codec(Simple, SimpleModel)
    for declared in usual._declared.values():
        declared.is_simple = False
    assert quick._declared[Job, type(event)].is_simple

    outcomes = []
    for journal in (quick, usual):
        try:
            outcomes.append(journal.encode(event).decode())
        except JournalError as error:
            outcomes.append(str(error))

    assert outcomes[0] == outcomes[1]
    if outcomes[0].startswith("{"):
        assert shape(quick.decode(outcomes[0].encode())) == shape(event)


@pytest.mark.long
@given(events)
@settings(max_examples=tries(60))
@example(Loose(Job.STARTED, [True, 1, 1.0]))
@example(Plain(Job.STARTED, number=Int(1)))
@example(Plain(Job.STARTED, at=datetime(2024, 10, 27, 2, 30, fold=1)))
@example(Typed(Job.STARTED, queue=deque([1], maxlen=1)))
@example(Typed(Job.STARTED, price=Decimal("1.00")))
def test_whatever_is_accepted_comes_back_equal_in_types_and_values(event: Any) -> None:
    """An int key came back as a string, a tuple as a list, a datetime in an Any field as a string, all after `True`."""
    journal = codec(*CLASSES)
    try:
        line = journal.encode(event)
    except JournalError as error:
        refused = str(error)
    else:
        assert shape(journal.decode(line)) == shape(event)
        return
    assert "its field " in refused


RIGHT = [
    Plain(Job.ENDED, "größe\0", -(2**70), math.inf, True, "n", datetime.max.replace(tzinfo=UTC)),
    Plain(Job.ENDED, amount=-0.0, at=datetime.min, tags=["a"], sizes=(1, 2), names=frozenset(Name)),
    Plain(Job.ENDED, shares={"a": None, "b": math.nan}, inners=[InnerModel(number=3)]),
    Slotted(Job.STARTED, "a", 2),
    PlainModel(type=Job.ENDED, moments={"a": datetime(2024, 1, 1)}),
    Typed(Job.STARTED, keys={1: "a"}, either=1.0, data=b"a", pair=Pair(3, 4), items=[1], nested={(1, 2)}),
    Typed(Job.STARTED, inner=Inner(1, Inner(2, None, {"a": [1, None, 2.5]})), groups=defaultdict(list, a=[1])),
    Loose(Job.STARTED, {"a": [1, 2.0, True, None, "b", {"c": []}]}),
]


@pytest.mark.parametrize("event", RIGHT)
def test_values_of_the_declared_types_are_accepted_and_come_back(event: Any) -> None:
    journal = codec(type(event))

    assert shape(journal.decode(journal.encode(event))) == shape(event)


WRONG = [
    (Loose(Job.STARTED, {1: "a", "1": "b"}), r"its field value is \{1: 'a', '1': 'b'\}"),
    (Loose(Job.STARTED, {1: "a"}), r"its field value has the key 1 \(an int\), and would come back as '1' \(a str\)"),
    (
        Loose(Job.STARTED, {"a": [1, (2,)]}),
        r"its field value\['a'\]\[1\] is \(2,\) \(a tuple\), and would come back as",
    ),
    (Loose(Job.STARTED, datetime(2024, 1, 1)), r"its field value is datetime.*\(a datetime\).*'2024-01-01T00:00:00'"),
    (Loose(Job.STARTED, Inner(anything=Decimal(1))), r"its field value is Inner.*\(an Inner\), .* \(a dict\)"),
    (Loose(Job.STARTED, "\ud800"), "its field value does not go into JSON and back"),
    (Loose(Job.STARTED, object()), "its field value does not go into JSON and back"),
    (Loose(Job.STARTED, EqualToAll()), "<Loose, .* RuntimeError> cannot .* its field value does not go into JSON"),
    (Plain(Job.STARTED, number="5"), r"its field number is '5' \(a str\), and would come back as 5 \(an int\)"),  # type: ignore[arg-type]
    (Plain(Job.STARTED, number=True), r"its field number is True \(a bool\), and would come back as 1 \(an int\)"),
    (Plain(Job.STARTED, amount=5), r"its field amount is 5 \(an int\), and would come back as 5.0 \(a float\)"),
    (Plain(Job.STARTED, number=[]), "its field number would not be read again: Input should be a valid integer"),  # type: ignore[arg-type]
    (Plain(Job.STARTED, text=Name.A), r"its field text is <Name.A: 'a'> \(a Name\)"),
    (
        Plain(Job.STARTED, number=10**4300),
        "<Plain, .* ValueError> cannot .* number does not go into JSON and back",
    ),
    (
        Plain(Job.STARTED, at=datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))),
        r"its field at is datetime.*ZoneInfo.*would come back as .*TzInfo",
    ),
    (Typed(Job.STARTED, items=(1, 2)), r"its field items is \(1, 2\) \(a tuple\), and would come back as \[1, 2\]"),
    (Typed(Job.STARTED, inner=Inner(part=Inner(anything=(1,)))), r"its field inner.part.anything is \(1,\)"),
    (Typed(Job.STARTED, groups=defaultdict(dict)), "its field groups is defaultdict"),  # type: ignore[arg-type]
    (
        Typed(Job.STARTED, keys={1: "a", 2: 3}),
        "its field keys.2 would not be read again: Input should be a valid string",
    ),  # type: ignore[dict-item]
]


# -- attributes that are not written, or not read --------------------------------------------------------------------


@dataclasses.dataclass
class WithInit:
    type: Job
    seq: int = dataclasses.field(init=False, default=0)
    start: dataclasses.InitVar[int] = 3
    shared: ClassVar[int] = 0


class Model(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: Job
    hidden: int = Field(0, exclude=True)
    _private: list[int] = PrivateAttr(default_factory=list)
    written: int = Field(0, serialization_alias="WRITTEN")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return 2


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Job

    @cached_property
    def expensive(self) -> int:
        return 7


@dataclasses.dataclass
class Derived:
    type: Job
    name: str

    def __post_init__(self) -> None:
        self.length = len(self.name)


@dataclasses.dataclass
class Validated:
    type: Job
    number: Annotated[int, AfterValidator(lambda number: min(number, 10))] = 0


class Lower(BaseModel):
    model_config = ConfigDict(validate_assignment=False, str_to_lower=True)

    type: Job
    name: str = ""


def with_attribute(event: Any, name: str, value: Any) -> Any:
    setattr(event, name, value)
    return event


def with_private() -> Model:
    event = Model(type=Job.STARTED)
    event._private.append(1)
    return event


LOST = [
    (with_attribute(WithInit(Job.STARTED), "seq", 5), "its field seq is 5, and would come back as 0"),
    (with_attribute(WithInit(Job.STARTED), "note", 5), "its field note is 5, and would be lost"),
    (with_attribute(Plain(Job.STARTED), "note2", 5), "its field note2 is 5, and would be lost"),
    (Model(type=Job.STARTED, hidden=1), "its field hidden is 1, and would come back as 0"),
    (Model(type=Job.STARTED, written=1), "its field written is 1, and would come back as 0"),
    (with_private(), r"its field __pydantic_private__\['_private'\] is \[1\], and would come back as \[\]"),
    (Open(type=Job.STARTED, more=(1,)), r"its field __pydantic_extra__\['more'\] is \(1,\) \(a tuple\)"),  # type: ignore[call-arg]
    (Validated(Job.STARTED, 11), "its field number is 11, and would come back as 10"),
    (with_attribute(Lower(type=Job.STARTED), "name", "A"), "its field name is 'A', and would come back as 'a'"),
    (with_attribute(Derived(Job.STARTED, "a"), "length", 2), "its field length is 2, and would come back as 1"),
]


@pytest.mark.parametrize(("event", "message"), [*WRONG, *LOST])
def test_what_would_not_come_back_as_it_was_is_refused_with_its_field(event: Any, message: str) -> None:
    assert re.search(message, refusal(event)), refusal(event)


def test_a_combination_of_flags_is_no_type_of_an_event() -> None:
    @dataclasses.dataclass
    class Access:
        type: Rights

    journal = codec_of(Access, of=Rights)
    assert journal.decode(journal.encode(Access(Rights.READ))) == Access(Rights.READ)

    with pytest.raises(JournalError, match="is not a member of its class but a combination"):
        journal.encode(Access(Rights.READ | Rights.WRITE))


# -- the declaration -------------------------------------------------------------------------------------------------


class Odd(Enum):
    PAIR = (1, 2)


class Opaque:
    pass


def standard(hint: Any, **options: Any) -> type:
    return dataclasses.make_dataclass("E", [("type", Job), ("field", hint, dataclasses.field(**options))])


def model(hint: Any, field: Any = ..., **config: Any) -> type:
    namespace = {"__annotations__": {"type": Job, "field": hint}, "model_config": ConfigDict(**config)}  # type: ignore[typeddict-item]
    return type("E", (BaseModel,), namespace if field is ... else {**namespace, "field": field})


NEVER = [
    (standard(Callable[[], int]), "a callable"),
    (standard(int | Callable[[], int]), "a callable"),
    (standard(Iterable[int]), "an iterable, which is read once"),
    (standard(list[type[int]]), "a class"),
    (standard(Odd), r"Odd\.PAIR, whose value is \(1, 2\)"),
    (standard(dict[tuple[int, int], int]), "a dict whose keys are of the kind tuple"),
    (standard(SecretStr), "a secret"),
    (standard(Opaque), "Unable to generate"),
    (standard(dataclasses.InitVar[int]), "an InitVar without a default"),
    (model(InstanceOf[Opaque]), "an instance of a class that pydantic does not know"),
    (model(Opaque, arbitrary_types_allowed=True), "an instance of a class that pydantic does not know"),
    (model(int, Field(exclude=True)), "a field that is excluded and has no default"),
    (model(int, Field(validation_alias="a")), "a field that is written as field and read as a"),
    (model(int, Field(serialization_alias="a", validation_alias="b")), "a field that is written as a and read as b"),
]


@pytest.mark.parametrize(("kind", "what"), NEVER, ids=range(len(NEVER)))
def test_a_field_that_no_value_survives_is_refused_at_the_registration(kind: type, what: str) -> None:
    dispatcher = AsyncDispatcher()

    with pytest.raises(TypeError, match=rf"^E\.field cannot be kept in a journal: .*{what}") as refused:
        dispatcher.register(Job, lambda _: None, events=kind)
    assert "\n" not in str(refused.value)


class Holder(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    type: Job
    opaque: Annotated[Any, PlainSerializer(lambda opaque: opaque.number), AfterValidator(Inner)]

    @field_validator("opaque", mode="before")
    @classmethod
    def _make(cls, given: Any) -> Any:
        return given.number if isinstance(given, Inner) else given


def cached(event: Open) -> Open:
    assert event.expensive == 7
    return event


def made(kind: type, **options: Any) -> Any:
    return kind(type=Job.STARTED, **options)


@pytest.mark.parametrize(
    "event",
    [
        # Computed again, or at its default.
        made(WithInit),
        made(Model),
        cached(made(Open, more=[1])),
        made(Derived, name="abc"),
        made(Validated, number=10),
        made(Lower, name="A"),
        # Declared so that it may come back.
        made(model(int, Field(alias="a")), a=3),
        made(model(int, Field(validation_alias="a"), populate_by_name=True), a=3),
        made(model(int, Field(3, exclude=True))),
        made(standard(dict[int, str]), field={1: "a"}),
        made(Holder, opaque=Inner(5)),
        made(pydantic.dataclasses.dataclass(standard(set[int])), field={1}),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_is_computed_again_or_declared_with_care_comes_back(event: Any) -> None:
    journal = codec(type(event))

    assert journal.decode(journal.encode(event)) == event


# -- through a dispatcher --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["serializer", "validator"])
def test_an_event_whose_codec_posts_without_end_is_refused_by_its_class(part: str, tmp_path: Path) -> None:
    """Each level tried every field again, so the post did not return."""
    dispatcher = AsyncDispatcher(journal=JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True)))

    def post(number: int) -> int:
        dispatcher.event_handler.handle(posting(type=Job.STARTED, inner=inner.model_construct(number=number)))
        return number

    posts = PlainSerializer(post) if part == "serializer" else AfterValidator(post)
    inner = create_model("Inner", number=(Annotated[int, posts], ...))
    posting = create_model("Posting", type=(Job, ...), inner=(inner, ...))
    dispatcher.register(Job, lambda _: None, events=posting)
    with dispatcher:
        with pytest.raises(JournalError, match=r"Posting cannot be kept .* post events while .* post from a handler"):
            post(1)

        assert dispatcher.stats().accepted == 0
