from __future__ import annotations

import pytest

from dispatcher import ConfigError
from pipeline.sweep.settings import parse_settings, value_text


def test_values_are_yaml_in_the_order_of_the_settings() -> None:
    axes = parse_settings(
        ["scheduler=fifo,capacity", "nodes=0.5, 1.0", "scheduler.queues=[{name: a, capacity: 100}],null", "load=2"]
    )

    assert [(axis.key, axis.path, axis.values) for axis in axes] == [
        ("scheduler", "scheduler.kind", ("fifo", "capacity")),
        ("nodes", "nodes", (0.5, 1.0)),
        ("scheduler.queues", "scheduler.queues", ([{"name": "a", "capacity": 100}], None)),
        ("load", "load", (2,)),
    ]


def test_a_value_is_shown_as_yaml_on_one_line() -> None:
    assert [value_text(value) for value in ("fifo", 0.5, 3, True, None, [{"name": "a"}])] == [
        "fifo",
        "0.5",
        "3",
        "true",
        "null",
        '[{"name": "a"}]',
    ]


def test_no_settings_are_nothing_to_compare() -> None:
    with pytest.raises(ConfigError, match="nothing to compare: give --set KEY=V1,V2"):
        parse_settings([])


@pytest.mark.parametrize("setting", ["scheduler", "=fifo", "scheduler=", "scheduler= ", " = "])
def test_a_setting_without_key_or_values_is_refused_with_an_example(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"expected KEY=V1,V2, such as scheduler=fifo,capacity"):
        parse_settings([setting])


@pytest.mark.parametrize("setting", ["scheduler=fifo,,capacity", "scheduler=[fifo", "scheduler=fifo] [", "nodes=0.5,"])
def test_values_that_are_not_yaml_or_empty_are_refused_by_name(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set (scheduler|nodes)=.*(not YAML|a value is empty)") as error:
        parse_settings([setting])

    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", ["0", "-1", "0.0", "half", "true", ".nan", ".inf", "[1]", "2000000"])
def test_nodes_are_factors_or_numbers_above_zero(value: str) -> None:
    with pytest.raises(ConfigError, match=r"expected factors of the workload's nodes, such as 0\.5 or 1\.0, or"):
        parse_settings([f"nodes={value}"])


def test_factors_and_numbers_of_nodes_do_not_mix() -> None:
    with pytest.raises(ConfigError, match=r"--set nodes=0\.5,1: a value with a decimal point is a factor"):
        parse_settings(["nodes=0.5,1"])


@pytest.mark.parametrize("value", ["0", "-2", "fast", "true", "1001", ".nan"])
def test_load_is_a_factor_within_bounds(value: str) -> None:
    with pytest.raises(ConfigError, match=r"a factor for the applications' arrival rate, from 0\.001 to 1000"):
        parse_settings([f"load={value}"])


def test_a_value_or_a_key_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="fifo is given twice; give each value once"):
        parse_settings(["scheduler=fifo,capacity,fifo"])
    with pytest.raises(ConfigError, match=r"--set scheduler\.kind is given twice; give all its values at once"):
        parse_settings(["scheduler=fifo", "scheduler.kind=capacity"])
    with pytest.raises(ConfigError, match=r"--set simulation and --set simulation\.heartbeat_interval_ms overlap"):
        parse_settings(["simulation={heartbeat_interval_ms: 5}", "simulation.heartbeat_interval_ms=5"])


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("metrics.port=1,2", "a sweep serves no metrics"),
        ("journal.buffer_rows=1,2", "a sweep writes no journal"),
        ("journal_path=a,b", "a sweep writes no journal"),
        ("state_store.kind=memory,sqlite", "a sweep keeps its applications in memory"),
        ("simulation.workload_defaults.node_vcores=1,2", "the workload is read once, with the sizes of --config"),
        ("nodes.host=a,b", "the nodes come from the workload"),
    ],
)
def test_a_key_that_changes_nothing_is_refused_with_the_reason(setting: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_settings([setting])


def test_an_absurd_product_is_refused_with_its_size() -> None:
    numbers = ",".join(str(number) for number in range(1, 41))

    with pytest.raises(ConfigError, match="40 x 40 = 1,600 combinations, and each is a whole replay; give fewer"):
        parse_settings([f"nodes={numbers}", f"load={numbers}"])
