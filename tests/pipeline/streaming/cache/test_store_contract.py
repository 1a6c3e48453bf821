"""What each store of results does, whatever its database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pipeline.streaming import ResultCache

from ....kit import TIMEOUT_S, in_threads
from .stores import DONE, Claim, ResultKey, ResultStore, Time, dump_results, opened

Make = Callable[..., ResultCache]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.getfixturevalue(f"{request.param}_results")
    return made


@pytest.fixture
def cache(make: Make) -> ResultCache:
    return make()


def keys(cache: ResultCache, values: Sequence[Any]) -> list[ResultKey]:
    return list(map(cache.keys_of("f", ""), values))


def test_results_are_found_by_another_process(cache: ResultCache) -> None:
    with ExitStack() as stack:
        writer, reader = opened(stack, cache), opened(stack, cache)
        missing = reader("a")
        writer.call("a", 1, (2, b"x\0"))

        assert (missing.results, missing.is_busy) == (None, False)
        assert reader("a").results == [1, (2, b"x\0")]
        assert reader("a", wants_call=True).results == [1, (2, b"x\0")]
        assert reader("b").results is None


def test_results_expire(make: Make) -> None:
    clock = Time()
    with ExitStack() as stack:
        asker = opened(stack, make(expires_after_s=60), clock)
        asker.call("a", 1)
        clock.now_s += 59.9
        still = asker("a").results
        clock.now_s += 0.2
        expired = asker("a").results
        asker.call("a", 2)

        assert (still, expired, asker("a").results) == ([1], None, [2])


def test_expired_results_are_removed(make: Make) -> None:
    """The session's clock is in 1970, so its results have long expired."""
    with ExitStack() as stack:
        asker = opened(stack, make())
        asker.call("a", 1)
        asker.call("b", 1)

        removed = make(expires_after_s=60).remove_expired()

        assert removed == 2
        assert asker("a").results is None


def test_a_busy_key_is_waited_for(cache: ResultCache) -> None:
    with ExitStack() as stack:
        caller, waiter = opened(stack, cache), opened(stack, cache)
        claim = caller("a", wants_call=True)
        busy = waiter("a", wants_call=True)
        asked = waiter("a")
        waiting, answered = waiter.send("a", wants_call=True, waits=True)
        was_answered = answered.is_set()
        caller.session.finish(claim.key, dump_results([7]))
        assert answered.wait(TIMEOUT_S)

        assert (claim.is_mine, busy.is_busy, busy.is_mine, was_answered) == (True, True, False, False)
        assert (asked.results, asked.is_busy) == (None, False)
        assert waiting.results == [7]


def test_a_busy_key_is_taken_over_from_a_failed_call(cache: ResultCache) -> None:
    with ExitStack() as stack:
        caller, waiter = opened(stack, cache), opened(stack, cache)
        claim = caller("a", wants_call=True)
        waiting, answered = waiter.send("a", wants_call=True, waits=True)
        caller.session.release(claim.key)
        assert answered.wait(TIMEOUT_S)

        assert (waiting.is_mine, waiting.was_unknown) == (True, False)


def test_calls_of_one_session_wait_for_each_other(cache: ResultCache) -> None:
    with ExitStack() as stack:
        asker = opened(stack, cache)
        claim = asker("a", wants_call=True)
        busy = asker("a", wants_call=True)
        (second, is_second), (third, is_third) = [asker.send("a", wants_call=True, waits=True) for _ in range(2)]
        asker.session.release(claim.key)
        assert is_second.wait(TIMEOUT_S)
        third_waited = not is_third.is_set()
        asker.session.finish(second.key, dump_results([7]))
        assert is_third.wait(TIMEOUT_S)

        assert (claim.is_mine, busy.is_busy, second.is_mine, third_waited) == (True, True, True, True)
        assert (third.is_mine, third.results) == (False, [7])


def test_a_call_is_unknown_once_its_process_has_ended(make: Make) -> None:
    with ExitStack() as stack:
        ending = opened(stack, make())
        ending("a", wants_call=True)
        careful, eager = opened(stack, make(on_unknown="capture")), opened(stack, make())
        before = make().unknown()
        ending.session.close()
        unknown = make().unknown()
        captured = careful("a")
        asked = eager("a")
        called = eager("a", wants_call=True)

        assert before == []
        assert [(each.function, each.key, each.began_at) for each in unknown] == [("f", '"a"', 1000.0)]
        assert "begun at 1970-01-01 00:16:40 UTC" in str(captured.error)
        assert (asked.was_unknown, asked.results) == (True, None)
        assert (called.was_unknown, called.is_mine) == (True, True)
        assert careful("a").error is None  # it is in flight again
        assert make().unknown() == []


def test_a_call_that_was_given_up_is_unknown(make: Make) -> None:
    with ExitStack() as stack:
        asker = opened(stack, make())
        asker.session.cut_off(asker("a", wants_call=True).key)
        asker.session.flush()

        assert [each.key for each in make().unknown()] == ['"a"']
        assert make().forget_unknown() == 1
        assert make().unknown() == []
        assert asker("a", wants_call=True).was_unknown is False


def test_each_key_is_claimed_once(cache: ResultCache) -> None:
    """Owners on threads of their own claim the same keys, in other orders, in steps of a few keys."""
    won: list[set[bytes]] = [set() for _ in range(4)]
    wanted = keys(cache, range(150))

    def claim(place: int, store: ResultStore) -> None:
        own = wanted if place % 2 else wanted[::-1]
        for at in range(0, len(own), 10):
            with store.step():
                some = own[at : at + 10]
                seen = store.read([key.digest for key in some])
                free = [Claim(key, None) for key in some if key.digest not in seen]
                won[place] |= store.claim(free, 1.0)

    with ExitStack() as stack:
        stores = [stack.enter_context(closing(cache.connect("f"))) for _ in range(4)]
        in_threads(*(partial(claim, place, store) for place, store in enumerate(stores)))

    assert sum(map(len, won)) == len(wanted)
    assert set().union(*won) == {key.digest for key in wanted}


def test_a_claim_of_what_has_changed_is_not_won(cache: ResultCache) -> None:
    with ExitStack() as stack:
        one, other = (stack.enter_context(closing(cache.connect("f"))) for _ in range(2))
        (key,) = keys(cache, ["a"])
        one.claim([Claim(key, None)], 1.0)
        seen = one.read([key.digest])[key.digest]
        early = other.claim([Claim(key, replace(seen, at=0.5))], 1.0)
        again = other.claim([Claim(key, seen)], 1.0)
        late = one.claim([Claim(key, seen)], 3.0)
        new = one.claim([Claim(key, None)], 4.0)
        one.release([key.digest])
        one.cut_off([key.digest])

        assert (early, again, late, new) == (set(), {key.digest}, set(), set())
        assert other.read([key.digest])[key.digest].owner == other.owner
        assert one.alive([one.owner, other.owner, "7"]) == {one.owner, other.owner}
        other.release([key.digest])
        assert one.claim([Claim(key, seen)], 5.0) == {key.digest}  # nobody has it any more


def test_a_claim_takes_the_place_of_an_old_result(cache: ResultCache) -> None:
    with closing(cache.connect("f")) as store:
        (key,) = keys(cache, ["a"])
        store.finish([(key.digest, b"[1]")], 1.0)
        store.finish([(key.digest, b"[2]")], 2.0)
        done = store.read([key.digest])[key.digest]
        store.claim([Claim(key, done)], 3.0)
        store.cut_off([key.digest])

        assert (done.state, done.at, done.value) == (DONE, 2.0, b"[2]")
        assert store.read([key.digest])[key.digest].value is None
        assert [(each.key, each.began_at) for each in store.unknown()] == [('"a"', 3.0)]


def test_more_keys_than_one_query_takes(cache: ResultCache) -> None:
    with closing(cache.connect("f")) as store:
        made = keys(cache, range(1200))
        with store.step():
            won = store.claim([Claim(key, None) for key in made], 1.0)
            store.finish([(key.digest, dump_results([at])) for at, key in enumerate(made)], 1.0)

        assert won == {key.digest for key in made}
        assert {entry.state for entry in store.read(list(won)).values()} == {DONE}
        assert len(store.read(list(won))) == 1200
