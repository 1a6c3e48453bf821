"""A bound for the results of a call."""

from pipeline.streaming import ordered_wait


async def repeat(value: int) -> list[int]:
    return [value] * value


def test_a_call_with_too_many_results_has_failed() -> None:
    results = ordered_wait(range(5), repeat, timeout=60, max_results=2, on_error="drop")

    assert list(results) == [1, 2, 2]
