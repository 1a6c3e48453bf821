"""Configuration: a wrong file is refused in one line that names the file, the key and what is allowed there."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from dispatcher import AsyncDispatcher, ConfigError, ConfigModel, DispatcherConfig, JournalConfig, load_config
from dispatcher.config import configure_logging, parse_config


class Queue(ConfigModel):
    name: str
    capacity: int = Field(10, ge=1)


class Daemon(ConfigModel):
    """Has all that a configuration can have: plain keys, a section, a list of sections, and an optional one."""

    name: str = "daemon"
    ratio: int | float = 1
    path: Path | None = None
    dispatcher: DispatcherConfig = DispatcherConfig()
    queues: tuple[Queue, ...] = ()
    spare: Queue | None = None


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "daemon.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def whole_refusal(path: Path, load: Callable[[Path], object] = lambda path: load_config(path, Daemon)) -> str:
    """What the error says behind the file's name. It is one line."""
    with pytest.raises(ConfigError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


def refusal(path: Path, load: Callable[[Path], object] = lambda path: load_config(path, Daemon)) -> str:
    """What the error says behind the file's name and the place in it."""
    return re.sub(r"^, line \d+, column \d+", "", whole_refusal(path, load))


# -- files that are accepted -----------------------------------------------------------------------------------------


def test_a_file_overrides_the_defaults(write: Callable[[str], Path]) -> None:
    path = write("dispatcher: {queue_capacity: 5}\nqueues:\n  - name: a\n  - {name: b, capacity: 1}\n")

    config = load_config(path, Daemon)

    assert config.name == "daemon"
    assert config.dispatcher == DispatcherConfig(queue_capacity=5)
    assert config.queues == (Queue(name="a"), Queue(name="b", capacity=1))


@pytest.mark.parametrize("text", ["", "# nothing but this\n", "---\n", "{}"])
def test_an_empty_file_means_the_defaults(write: Callable[[str], Path], text: str) -> None:
    assert load_config(write(text), Daemon) == Daemon()


def test_overrides_win_over_the_file(write: Callable[[str], Path]) -> None:
    path = write("name: of the file\nratio: 2")

    config = load_config(path, Daemon, {"name": "of the command line"})

    assert (config.name, config.ratio) == ("of the command line", 2)


def test_a_file_may_be_named_by_a_string_and_hold_any_utf8(write: Callable[[str], Path]) -> None:
    assert load_config(str(write("name: größe ✓")), Daemon).name == "größe ✓"


def test_values_do_not_change_after_loading() -> None:
    config = DispatcherConfig()

    with pytest.raises(ValidationError, match="frozen"):
        config.batch_size = 3  # type: ignore[misc]


# -- keys ------------------------------------------------------------------------------------------------------------


REFUSALS = {
    Daemon: [
        ("nam: x", ": unknown key nam; allowed here: dispatcher, name, path, queues, ratio, spare; did you mean name?"),
        (
            "dispatcher: {batchsize: 3}",
            ": unknown key dispatcher.batchsize; allowed here: at_exit, batch_size, drain_events_on_stop, "
            "drain_timeout_s, failing_warn_from, failing_warn_share, handler_warn_after_s, liveness_stuck_after_s, "
            "measure_times, print_events_info_threshold, queue_capacity, queue_full_policy, queue_full_timeout_s, "
            "queue_grows_warn_from, queue_grows_warn_s; did you mean batch_size?",
        ),
        ("queues: [{name: a}, {name: b, cap: 1}]", ": unknown key queues[1].cap; allowed here: capacity, name"),
        ("queues: [{capacity: 1}]", ": queues[0].name is missing; it has no default"),
        ("name: 3", ": name: 3 is not allowed; input should be a valid string..."),
        ("queues: 3", ": queues: 3 is not allowed; input should be a valid tuple..."),
        ("queues: [3]", ": queues[0]: 3 is not allowed; input should be a valid dictionary or instance of Queue..."),
        ("dispatcher:", ": dispatcher: None is not allowed; input should be a valid dictionary..."),
        ("ratio: wide", ": ratio: 'wide' is not allowed; input should be a valid integer..."),
        ("1: x", ": [1]: 1 is not allowed; keys should be strings"),
        ("- name: a", ": a mapping of keys to values is expected, not list"),
        ("name", ": a mapping of keys to values is expected, not str"),
        ('path: "a\\0b"', ": path: ..."),
        ('path: "\\ud800"', ": path: ..."),
    ],
    DispatcherConfig: [
        ("queue_capacity: 0", ": queue_capacity: 0 is not allowed; input should be greater than or equal to 1"),
        (
            "queue_full_policy: wait",
            ": queue_full_policy: 'wait' is not allowed; input should be 'block', 'reject' or 'drop_oldest'",
        ),
        ("queue_full_timeout_s: 0", ": queue_full_timeout_s: 0 is not allowed; input should be greater than 0"),
        ("drain_timeout_s: -1", ": drain_timeout_s: -1 is not allowed; input should be greater than or equal to 0"),
        ("drain_timeout_s: .inf", ": drain_timeout_s: inf is not allowed; input should be..."),
        ("drain_timeout_s: .nan", ": drain_timeout_s: nan is not allowed; input should be..."),
        ("queue_capacity: true", ": queue_capacity: True is not allowed; input should be a valid ..."),  # it was 1
        ("queue_capacity: '5'", ": queue_capacity: '5' is not allowed; input should be a valid ..."),
        ("queue_capacity: 5.5", ": queue_capacity: 5.5 is not allowed; input should be a valid ..."),
        ("drain_timeout_s: true", ": drain_timeout_s: True is not allowed; input should be a valid ..."),
        ("drain_timeout_s: '5'", ": drain_timeout_s: '5' is not allowed; input should be a valid ..."),
        ("drain_events_on_stop: 1", ": drain_events_on_stop: 1 is not allowed; input should be a valid ..."),
        ("drain_events_on_stop: 'yes'", ": drain_events_on_stop: 'yes' is not allowed; input should be a valid ..."),
        # These raised OverflowError and MemoryError later, in the middle of a run.
        (
            "drain_timeout_s: 1.0e+308",
            ": drain_timeout_s: 1e+308 is not allowed; input should be at most 1,000,000,000...",
        ),
        (f"batch_size: {2**53 + 1}", f": batch_size: {2**53 + 1} is not allowed; input should be at most {2**53:,}..."),
        (
            f"queue_capacity: {10**12}",
            ": queue_capacity: 1000000000000 is not allowed; input should be less than or eq...",
        ),
        (f"batch_size: 0x{'f' * 390}", ": batch_size: a number of 1,560 bits is not allowed..."),
    ],
}
"""For each class: files and what the error says behind the place; dots stand for more. A wait of infinite seconds ended
a stop with an OverflowError, and a missing key had its whole section rejected."""


@pytest.mark.parametrize(
    ("config", "text", "message"), [(config, *row) for config, rows in REFUSALS.items() for row in rows]
)
def test_a_wrong_file_is_refused_with_the_key_and_what_is_allowed(
    write: Callable[[str], Path], config: type[ConfigModel], text: str, message: str
) -> None:
    told = refusal(write(text), lambda path: load_config(path, config))

    assert told == message or (message.endswith("...") and told.startswith(message[:-3]))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("name: a\ndispatcher:\n  queue_capacity: true\n", ", line 3, column 3: dispatcher.queue_capacity: True is"),
        ("queues:\n- name: a\n- name: b\n  capacity: 0\n", ", line 4, column 3: queues[1].capacity: 0 is not"),
        ("queues: [{name: a, capacity: 0}]", ", line 1, column 20: queues[0].capacity: 0 is not"),
        ("name: a\nnam: b", ", line 2, column 1: unknown key nam;"),
        ("name: a\nspare: {capacity: 1}", ", line 2, column 1: spare.name is missing"),
        ("ratio: wide", ", line 1, column 1: ratio: 'wide' is not"),
        ("dispatcher:\n  <<: {batch_size: 0}\n", ", line 2, column 8: dispatcher.batch_size: 0 is not"),
        ("name: a\nratio: 1\nname: b\n", ", line 3, column 1: the key name is given twice; the first is in line 1"),
    ],
)
def test_the_message_names_file_line_and_key(write: Callable[[str], Path], text: str, place: str) -> None:
    assert whole_refusal(write(text)).startswith(place)


def test_a_value_that_is_not_from_the_file_has_no_line(write: Callable[[str], Path]) -> None:
    path = write("name: a\nratio: 1")

    message = whole_refusal(path, lambda path: load_config(path, Daemon, {"ratio": "wide"}))

    assert message.startswith(": ratio: 'wide' is not allowed")


def test_numbers_inside_collections_are_not_converted() -> None:
    class Nested(Daemon):
        sizes: tuple[int, ...] = ()
        shares: dict[str, float | None] = {}

    with pytest.raises(ConfigError, match=r"sizes\[1\]: True is not allowed"):
        parse_config({"sizes": [1, True]}, Nested)
    with pytest.raises(ConfigError, match=r"shares\.a: '1' is not allowed"):
        parse_config({"shares": {"a": "1"}}, Nested)
    with pytest.raises(ConfigError, match=r"queues\[0\]\.capacity: '1' is not allowed"):
        parse_config({"queues": [{"name": "a", "capacity": "1"}]}, Nested)
    assert parse_config({"shares": {"a": 1}}, Nested).shares == {"a": 1.0}


def test_the_message_has_the_first_problem_and_the_number_of_the_others(
    write: Callable[[str], Path],
) -> None:
    message = refusal(write("dispatcher: {batch_size: 0, queue_capacity: 0}\nnam: x"))

    assert message.startswith(": dispatcher.queue_capacity: 0 is not allowed")
    assert message.endswith(" (and 2 more)")


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"name: [{'x, ' * 2_000}]",
        "name: {" + ", ".join(f"k{n}: v" for n in range(1_000)) + "}",
        f"{'y' * 9999}: 1",
        f"ratio: {'x' * 10_000}",
        "ratio: [[[[[[[[[[1]]]]]]]]]]",
        r'ratio: "\e[2J\n"',
        r'"\e[2J\n": 1',
        "ratio: {? 1 : 2}",
    ],
    ids=range(8),
)
def test_a_value_or_key_in_an_error_is_cut_and_printable(write: Callable[[str], Path], text: str) -> None:
    message = refusal(write(text))

    assert len(message) < 700
    assert message.isprintable()


def test_values_that_aliases_repeat_beyond_all_bounds_are_refused(write: Callable[[str], Path]) -> None:
    """452 bytes of YAML kept the command busy for a minute, with the error's text alone."""
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10 if n else ['x'] * 10)}]" for n in range(9)]

    assert "aliases repeat more than 100,000 values" in refusal(write("\n".join(levels)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Queue(name="a", capcity=1),  # type: ignore[call-arg]
            "Queue: unknown key capcity; allowed here: capacity, name; did you mean capacity?",
        ),
        (
            lambda: JournalConfig(history_index=False),  # type: ignore[call-arg]
            "JournalConfig: history_index is no longer a key; lookups search the journal, which needs no index: "
            "remove the key",
        ),
        (
            lambda: JournalConfig(durability="snyc"),  # type: ignore[arg-type]
            "JournalConfig: durability: 'snyc' is not allowed; input should be 'none', 'interval' or 'sync'; "
            "did you mean sync?",
        ),
        (
            lambda: JournalConfig.model_validate_json("3"),
            "JournalConfig: 3 is not allowed; input should be an object",
        ),
        (
            lambda: AsyncDispatcher(queue_capacity=0),
            "DispatcherConfig: queue_capacity: 0 is not allowed; input should be greater than or equal to 1",
        ),
    ],
)
def test_a_mistake_in_python_is_explained_as_one_in_a_file(make: Callable[[], object], message: str) -> None:
    """It was pydantic's error, which is no DispatcherError."""
    with pytest.raises(ConfigError) as raised:
        make()

    assert str(raised.value) == message
    assert isinstance(raised.value, ValueError)


def test_plain_data_is_refused_in_the_name_of_its_source() -> None:
    with pytest.raises(ConfigError, match=r"^config: unknown key nam; allowed here: capacity, name"):
        parse_config({"name": "a", "nam": "b"}, Queue)
    with pytest.raises(ConfigError, match=r"^--queue: name is missing; it has no default$"):
        parse_config({}, Queue, source="--queue")


# -- files that are not configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [1", ", line 1, column 9: expected ',' or ']'"),
        ("name: a\n  b: c", ", line 2, column 4: mapping values are not allowed here"),
        ("\tname: a", ", line 1, column 1: found character '\\t' that cannot start any token"),
        ("name: *other", ", line 1, column 7: found undefined alias"),
        ("name: a\n---\nname: b", ", line 2, column 1: but found another document"),
        ("name: !!python/object:os.system x", ", line 1, column 7: could not determine a constructor for the tag"),
        ("? [a]\n: b", ", line 1, column 3: found unhashable key"),
        ("name: \x00", ": not valid YAML"),
        ("name: 2020-99-99", ", line 1, column 7: '2020-99-99' is not !!timestamp: month must be in 1..12"),
        ("name: !!int x", ", line 1, column 7: 'x' is not !!int: invalid literal for int()"),
        ("name: !!int ''", ", line 1, column 7: '' is not !!int"),
        ("name: !!float ''", ", line 1, column 7: '' is not !!float"),
        ("name: !!timestamp x", ", line 1, column 7: 'x' is not !!timestamp"),
        ("name: !!bool 'maybe'", ", line 1, column 7: 'maybe' is not !!bool"),
        ("[" * 1000, ", line 1, column 65: nested more than 64 levels deep"),
        ("- " * 1000, ", line 1, column 129: nested more than 64 levels deep"),
        ("a: &a [*a]", ", line 1, column 8: the alias a is inside its own anchor"),
        ("name: " + "1" * 401, ", line 1, column 7: a number of more than 400 characters"),
        ("name: " + "1:" * 300 + "1", ", line 1, column 7: a number of more than 400 characters"),
        ("#" * (1 << 20) + "\n", ": exceeds the limit of 1,048,576 bytes"),
    ],
    ids=range(20),
)
def test_a_file_that_is_not_yaml_is_refused_with_the_place(
    write: Callable[[str], Path], text: str, message: str
) -> None:
    """What PyYAML raises of its own, such as ValueError for a day that does not exist, once came as a traceback."""
    assert whole_refusal(write(text)).startswith(message)


LOADS = pytest.mark.parametrize(
    "load", [lambda path: load_config(path, Daemon), configure_logging], ids=["config", "logging"]
)


@LOADS
def test_a_missing_file_is_refused(tmp_path: Path, load: Callable[[Path], object]) -> None:
    assert refusal(tmp_path / "none.yaml", load) == ": cannot be read: No such file or directory"


@LOADS
@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 10_000, "\x1b[2J\n"], ids=ascii)
def test_a_name_that_no_file_can_have_is_refused(name: str, load: Callable[[Path], object]) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        load(Path(name))

    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2_200


def test_a_folder_or_a_binary_file_is_refused(tmp_path: Path, write: Callable[[bytes], Path]) -> None:
    assert refusal(tmp_path) == ": cannot be read: Is a directory"
    assert refusal(write(b"PK\x03\x04\xff\xfe")) == ": is not UTF-8 text, at byte 4"


@given(st.text(alphabet="ab:-[]{}#!&*?|>'\"%@,. \t\n0129", max_size=20))
def test_any_file_is_either_loaded_or_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text)

    try:
        load_config(path, Daemon)
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert str(path) in str(error)  # noqa: PT017


# -- logging ---------------------------------------------------------------------------------------------------------


@contextmanager
def unconfigured_root_logger() -> Iterator[logging.Logger]:
    """The root logger without handlers, pytest's own included; as it was, afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        yield root
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def test_without_a_file_warnings_are_logged() -> None:
    with unconfigured_root_logger() as root:
        configure_logging()
        configured = (root.level, [type(handler) for handler in root.handlers])

    assert configured == (logging.WARNING, [logging.StreamHandler])


def test_what_is_logged_cannot_change_the_terminal_but_may_have_lines_and_tabs() -> None:
    with unconfigured_root_logger() as root:
        configure_logging()
        record = logging.LogRecord("a", logging.WARNING, "", 0, "USER=x\x1b[31m\tIP=y\nnext\r", (), None)
        line = root.handlers[0].format(record)

    assert line.endswith(" WARNING a: USER=x\\x1b[31m\tIP=y\nnext\\r")


def test_a_logging_file_is_applied(write: Callable[[str], Path]) -> None:
    path = write("version: 1\ndisable_existing_loggers: false\nloggers: {of.this.test: {level: ERROR}}")

    with unconfigured_root_logger():
        configure_logging(path)

    assert logging.getLogger("of.this.test").level == logging.ERROR


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "dictionary doesn't specify a version"),
        ("version: 2", "Unsupported version: 2"),
        ("version: 1\nhandlers: 3", "'int' object is not iterable"),
        (
            "version: 1\nhandlers: {file: {class: logging.FileHandler, filename: /proc/none/log}}",
            "Unable to configure handler 'file': [Errno 2] No such file or directory: '/proc/none/log'",
        ),
        (
            "version: 1\nloggers: {of.this.test: {level: LOUD}}",
            "Unable to configure logger 'of.this.test': Unknown level: 'LOUD'",
        ),
    ],
    ids=["empty", "version", "handlers", "file", "level"],
)
def test_a_logging_file_that_logging_refuses_is_refused_with_the_reason(
    write: Callable[[str], Path], text: str, message: str
) -> None:
    """The reason, such as a folder that does not exist, was left out."""
    with unconfigured_root_logger():
        assert refusal(write(text), configure_logging) == f": logging rejects it: {message}"
