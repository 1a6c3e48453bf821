"""Descriptors in reserve: what has to be opened can be opened, also when the process has none left."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from dispatcher.util.descriptors import DescriptorReserve


def failing(times: int, number: int = errno.EMFILE) -> Callable[[], str]:
    """An action that succeeds once that many descriptors were given up."""
    left = times

    def action() -> str:
        nonlocal left
        if left:
            left -= 1
            raise OSError(number, os.strerror(number))
        return "opened"

    return action


@pytest.fixture
def reserve() -> DescriptorReserve:
    return DescriptorReserve(3)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("times", [0, 1, 3])
def test_an_action_gets_as_many_descriptors_as_it_needs(reserve: DescriptorReserve, times: int, number: int) -> None:
    assert reserve.run(failing(times, number)) == "opened"
    assert reserve.held == 3


def test_an_action_for_which_the_reserve_is_too_small_fails_and_the_reserve_is_filled_up(
    reserve: DescriptorReserve,
) -> None:
    with pytest.raises(OSError, match="Too many open files"):
        reserve.run(failing(4))

    assert reserve.held == 3


def test_any_other_error_leaves_the_reserve_as_it_is(reserve: DescriptorReserve) -> None:
    with pytest.raises(OSError, match="No space left"):
        reserve.run(failing(1, errno.ENOSPC))

    assert reserve.held == 3


def test_a_closed_reserve_holds_nothing_and_still_runs_actions(reserve: DescriptorReserve) -> None:
    reserve.close()
    reserve.close()

    assert reserve.run(failing(0)) == "opened"
    assert reserve.held == 0
