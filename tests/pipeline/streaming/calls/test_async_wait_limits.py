"""Rate limits, concurrency, shared and remembered calls, batches, and the counts of all that."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.aio import RateLimit

from .harness import ON_ERROR, HandBatchFunction, HandFunction, Harness, make_host
from .stage import BATCH, EITHER, LATE, LATE_BATCH, ORDERED, UNORDERED, Options, Rows, check, scenarios

ONE_AT_A_TIME: Options = {"concurrency": 1}
RETRIED: Options = {"retry": ON_ERROR}
SHARED: Options = {"dedupe_by": lambda value: value[0]}
REMEMBERED = SHARED | {"remember": 10}
IN_100_MS: Options = {"timeout_ms": 100}


def at_rate(calls_per_s: float, burst: float = 1, cost: Any = None) -> Options:
    return {"rate_limit": RateLimit(calls_per_s, burst, cost=cost), "timeout_ms": 9000, "capacity": 100}


def numbers(count: int) -> str:
    return " ".join(map(str, range(count)))


RATES: Rows = {
    "calls start at the rate": (
        at_rate(10), "take a b c -> calls a | +99 -> calls a | +1 -> calls a b | +100 -> calls a b c",
    ),
    "calls in line start in groups of half a burst": (
        at_rate(1000, 7),
        f"take {numbers(20)} | +1 -> calls {numbers(8)} | +3 -> made 8 | +1 -> calls {numbers(12)} | +4 -> made 16",
    ),
    "the only call in line starts when its turn comes": (
        at_rate(1000, 7), f"take {numbers(8)} -> made 7 | +1 -> calls {numbers(8)}",
    ),
    "a call counts for its cost": (
        at_rate(10, cost=len), "take aaa b c -> calls aaa | +200 -> calls aaa | +100 -> calls aaa b",
    ),
    # The late one's reservation is not enough for it.
    "a call that costs more than the late one before it waits for its cost": (
        LATE | at_rate(10, 5, len) | {"timeout_ms": 200},
        "take aaaaa b | ok aaaaa A | take ccccc -> calls aaaaa | +100 -> calls aaaaa b | ok b B | +99 -> calls aaaaa b",
    ),
    "retries go through the rate limit": (
        at_rate(10) | RETRIED, "take a | busy a | +99 -> calls a | +1 -> calls a a",
    ),
    # The call that asked for the pause made room for the next one, which did not wait.
    "a pause also holds calls that wait for a slot": (
        ONE_AT_A_TIME | {"timeout_ms": 9000},
        "take a b c | pause2 a | +1999 -> calls a | +1 -> calls a a | ok a A"
        " | +50 -> calls a a b",  # the first calls after a pause are 50 ms apart
    ),
    "a pause holds for batches that wait for room too": (
        BATCH | ONE_AT_A_TIME | {"max_batch_size": 1, "timeout_ms": 9000},
        "take a b c | pause2 a | +1999 -> calls a | +1 -> calls a b | ok b B | +50 -> calls a b c | ok c C"
        " | +50 -> calls a b c a | ok a A -> out A B C",
    ),
    # While one call took long, the others had their turns one after the other, and then all started at once.
    "calls that wait for room have had no turn at the rate": (
        ONE_AT_A_TIME | at_rate(10),
        "take a b c | +1000 | ok a | ok b -> calls a b | +100 -> calls a b c",
    ),
    "after a pause calls start at the rate again, and not all at its end": (
        at_rate(10),
        f"take {numbers(6)} | pause2 0 | +1999 -> made 1 | +100 -> made 2 | +100 -> made 3 | +100 -> made 4"
        " | +100 -> made 5 | +100 -> made 6 | +100 -> made 7 | +100 -> made 7",
    ),
}  # fmt: skip

CONCURRENCY: Rows = {
    "no more calls run than the concurrency allows": (
        UNORDERED | {"concurrency": 2}, "take a b c d -> calls a b | ok b B -> calls a b c | ok a A -> calls a b c d",
    ),
    "a late call makes room": (
        LATE | ONE_AT_A_TIME | IN_100_MS,
        "take a | +50 | take b -> calls a | +50 -> calls a b | ok b B -> out no_a B",
    ),
    "a call that was late before its turn is never made": (
        LATE | ONE_AT_A_TIME | {"deadline_ms": 100},
        "take a b | +100 | take c -> calls a c | ok c C -> out no_a no_b C",
    ),
    "the late answer of a late call makes no second room": (
        LATE | ONE_AT_A_TIME | IN_100_MS, "take a | +100 | late a | take b c -> calls a b",
    ),
    "retries count towards the concurrency": (
        ONE_AT_A_TIME | RETRIED,
        "take a b | busy a -> calls a b | +10 -> calls a b | ok b B -> calls a b a | ok a A -> out A B",
    ),
    "a retry that is late before its turn makes no room": (
        LATE | ONE_AT_A_TIME | RETRIED | IN_100_MS,
        "take a | busy a | +5 | take b | +5 | take c | +90 -> out no_a ; calls a b | ok b B -> calls a b c",
    ),
}  # fmt: skip

SHARING: Rows = {
    "calls for the same key are shared": (
        EITHER | SHARED,
        "take a1@1 a2@2 b1@3 -> calls a1 b1 | ok a1 A | ok b1 B -> stamped A@1 A@2 B@3 ; shared 1",
    ),
    "a shared error is the error of all": (
        SHARED | {"on_error": "capture"}, "take a1 a2 | busy a1 -> out !a1:ValueError !a2:ValueError ; captured 2",
    ),
    "a shared error that is retried serves all": (
        SHARED | RETRIED, "take a1 a2 | busy a1 | take a3 | +10 | ok a1 A -> out A A A ; calls a1 a1",
    ),
    "when the leader is late the next one calls, and the leader's late answer ends nothing": (
        LATE | SHARED | IN_100_MS,
        "take a1 | +60 | take a2 | +40 -> out no_a1 ; calls a1 a2 | late a1 -> out no_a1 | ok a2 A -> out no_a1 A",
    ),
    "when the leader is late, who came next takes the lead": (
        LATE | SHARED | IN_100_MS,
        "take a1 | +60 | take a2 a3 a4 | +40 -> out no_a1 ; calls a1 a2 | ok a2 A -> out no_a1 A A A",
    ),
    "a follower that is late with its leader makes no call": (
        LATE | SHARED | UNORDERED | IN_100_MS,
        "take a1 a2 | +100 -> out no_a1 no_a2 ; sent 1 | take a3 | ok a3 A -> out no_a1 no_a2 A",
    ),
    "remembered answers are not called again": (
        REMEMBERED, "take a1 | ok a1 A | take a2@5 -> stamped A A@5 ; calls a1 ; remembered 1",
    ),
    "a remembered answer waits for its turn": (
        REMEMBERED | ORDERED, "take a1 | ok a1 A | take b1 a2 -> out A | ok b1 B -> out A B A",
    ),
    "answers are remembered for a time": (
        REMEMBERED | {"remember_ms": 1000},
        "take a1 | ok a1 A | +999 | take a2 -> calls a1 | +1 | take a3 -> calls a1 a3",
    ),
    "the answer that was used longest ago is forgotten first": (
        {"dedupe_by": len, "remember": 2, "combine": lambda value, results: [f"{value}:{results[0]}"]},
        "take a | ok a 1 | take bb | ok bb 2 | take c ddd | ok ddd 3 | take e ff"
        " -> calls a bb ddd ff ; out a:1 bb:2 c:1 ddd:3 e:1 ; remembered 2",
    ),
    "errors are not remembered": (
        REMEMBERED | {"on_error": "drop"}, "take a1 | busy a1 | take a2 -> calls a1 a2",
    ),
    "a timeout's results are not remembered": (
        LATE | REMEMBERED | IN_100_MS, "take a1 | +100 | take a2 -> calls a1 a2",
    ),
    "what is shared is combined with each record": (
        REMEMBERED | {"combine": lambda value, results: [f"{value}:{result}" for result in results]},
        "take a1 a2 | ok a1 A | take a3 -> out a1:A a2:A a3:A",
    ),
}  # fmt: skip

BATCHES: Rows = {
    "a full batch is sent at once": (
        BATCH | EITHER | {"max_batch_size": 2, "linger_ms": 50},
        "take 1 2 3 -> calls 1+2 | ok 1+2 one two,zwei -> out one two zwei",
    ),
    "a batch that is not full is sent after the linger": (
        BATCH | {"max_batch_size": 10, "linger_ms": 50},
        "take 1 | +30 | take 2 | +19 -> calls | +1 -> calls 1+2",
    ),
    "without a linger a batch has the records taken in before the next mail": (
        BATCH | {"max_batch_size": 10}, "take 1 2 3 -> calls 1+2+3 | take 4 | take 5 -> calls 1+2+3 4 5",
    ),
    "a batch without waiting records is cancelled and frees its slot": (
        LATE_BATCH | ONE_AT_A_TIME | IN_100_MS | {"max_batch_size": 2},
        "take 1 2 -> calls 1+2 | +50 | take 3 4 -> calls 1+2 | +50 -> out no_1 no_2 ; calls 1+2 3+4 ; cancelled 1+2",
    ),
    "an exception in place of a list fails that value only": (
        BATCH | {"max_batch_size": 3, "on_error": "capture"},
        "take 1 2 3 | ok 1+2+3 one !gone - -> out one !2:KeyError",
    ),
    "a value that failed in a batch is retried in another": (
        BATCH | RETRIED | {"max_batch_size": 2, "linger_ms": 20},
        "take 1 2 | ok 1+2 one !busy -> out one | +10 | +20 -> calls 1+2 2 | ok 2 two -> out one two",
    ),
    "a value that is late leaves a batch that gathers": (
        LATE_BATCH | {"max_batch_size": 10, "linger_ms": 100, "deadline_ms": 60},
        "take 1 | +50 | take 2 | +10 -> out no_1 | +40 -> calls 2",
    ),
    "values of a batch that is late are late each": (
        LATE_BATCH | {"max_batch_size": 2, "linger_ms": 50, "deadline_ms": 100},
        "take 1 | +40 | take 2 | +60 -> out no_1"
        " | ok 1+2 one two -> out no_1 two ; completed 2 ; timed_out 1 ; in_flight 0",
    ),
    "an answer to a batch wins against a timeout whose mail runs first": (
        LATE_BATCH | IN_100_MS | {"max_batch_size": 2},
        "take 1 2 | clock 100 | mailed ok 1+2 one two | mail -> out one two ; hooks",
    ),
    "a timeout beats an entry that comes later and would be retried": (
        LATE_BATCH | RETRIED | IN_100_MS | {"max_batch_size": 2},
        "take 1 2 | clock 100 | mailed ok 1+2 one !busy | mail -> out one no_2 | +1000 -> calls 1+2 ; in_flight 0",
    ),
    "a timeout beats an entry that came before and would be retried": (
        LATE_BATCH | RETRIED | IN_100_MS | {"max_batch_size": 2},
        "take 1 2 | mailed ok 1+2 one !busy | clock 150 | mail -> out one no_2 | +1000 -> calls 1+2 ; in_flight 0",
    ),
    "the end of input sends a lingering batch": (
        BATCH | {"max_batch_size": 10, "linger_ms": 500, "idle": "mailed ok 1 one"}, "take 1 | end -> out one ; now 0",
    ),
    # The queue has room for fewer than the batch: nothing else can come, so it is sent.
    "a full queue does not wait for a batch that cannot fill": (
        BATCH | {"capacity": 2, "max_batch_size": 10, "linger_ms": 500, "idle": "mailed ok 1+2 1 2"},
        "take 1 2 3 -> out 1 2 ; now 0",
    ),
    "concurrency counts batches": (
        BATCH | ONE_AT_A_TIME | {"max_batch_size": 2}, "take 1 2 3 4 -> calls 1+2 | ok 1+2 1 2 -> calls 1+2 3+4",
    ),
    "a batch of shared calls has each key once": (
        BATCH | SHARED | {"max_batch_size": 10}, "take a1 a2 b1 -> calls a1+b1 | ok a1+b1 A B -> out A A B",
    ),
}  # fmt: skip

COUNTS: Rows = {
    "the counts of a run balance": (
        LATE | UNORDERED | RETRIED | IN_100_MS | {"on_error": "drop"},
        "take late good bad flaky | ok good 1 2 | gone bad | busy flaky | +10 -> in_flight 2 | ok flaky 3"
        " | +90 -> sent 5 ; retried 1 ; timed_out 1 ; dropped 1 ; completed 3 ; failed 1 ; in_flight 0",
    ),
    "calls are in flight until close": (SHARED, "take a1 a2 b1 b2 c -> in_flight 3 | close -> in_flight 0"),
    "calls that wait for a slot are not in flight": (
        SHARED | ONE_AT_A_TIME, "take a1 a2 b1 b2 c -> in_flight 1 | close -> in_flight 0",
    ),
    "calls that wait for the rate are not in flight": (
        SHARED | at_rate(1), "take a1 a2 b1 b2 c -> in_flight 1 | close -> in_flight 0",
    ),
    "calls that wait for a retry are not in flight": (
        SHARED | RETRIED, "take a1 a2 b1 b2 c | busy a1 -> in_flight 2 | close -> in_flight 0",
    ),
    "each call has its time": ({}, "take a b | ok a A | ok b B -> timed 2 2"),
    "calls that end while they wait for a slot are not counted": (
        LATE | ONE_AT_A_TIME | {"deadline_ms": 100},
        "take a b c | ok a A | +100 -> calls a b ; sent 2 ; in_flight 0 ; timed_out 2",
    ),
    "calls that end while they wait for the rate are not counted": (
        LATE | at_rate(1) | {"deadline_ms": 100},
        "take a b c | ok a A | +100 -> calls a ; sent 1 ; in_flight 0 ; timed_out 2",
    ),
    "a shared call in flight is counted once": (
        LATE | SHARED | IN_100_MS,
        "take a1 a2 a3 -> in_flight 1 | +100 -> in_flight 0 ; timed_out 3 ; completed 3 ; shared 2",
    ),
}  # fmt: skip

READING_AHEAD: Rows = {
    "what is read ahead is not called before a call has ended": (
        {"capacity": 2, "read_ahead": 2},
        "take a b c d -> calls a b ; available False | ok b B -> calls a b c ; out | ok a A -> calls a b c d ; out A B",
    ),
    "the timeout of a record read ahead runs from the start of its call": (
        LATE | IN_100_MS | {"capacity": 1, "read_ahead": 1},
        "take a b -> calls a | +100 -> out no_a ; calls a b | +99 -> out no_a | ok b B -> out no_a B",
    ),
}  # fmt: skip


@scenarios(RATES | CONCURRENCY | SHARING | BATCHES | COUNTS | READING_AHEAD)
def test_scenario(options: Options, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(options, script, monkeypatch)


def test_an_operator_that_closes_submits_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was given up made room for the next."""
    host = make_host(HandFunction())
    host.start()
    submit, submitted = host.submit, []
    monkeypatch.setattr(host, "submit", lambda calls: submitted.extend([call.value for call in calls]) or submit(calls))
    with Harness(host, concurrency=1) as harness:
        harness.process("a", "b", "c")

    host.stop()
    assert submitted == ["a"]


@pytest.mark.parametrize("answer", [[["one"]], [["one"], ["two"], ["three"]], "ab", None, {"a": 1}])
def test_a_batch_without_one_entry_for_each_value_fails_all_its_values(answer: Any) -> None:
    with Harness(HandBatchFunction(), max_batch_size=2, on_error="capture") as harness:
        harness.process(1, 2)
        harness.run_mail()
        harness.call([1, 2]).give(answer)
        harness.settle()
        harness.run_mail()

        assert [captured.input for captured in harness.values()] == [1, 2]
        assert "async_invoke_batch returned" in harness.values()[0].message


def test_batch_options_for_a_function_without_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="async_invoke_batch"):
        Harness(HandFunction(), max_batch_size=10)


def test_a_key_that_is_not_hashable_fails_the_task() -> None:
    message = r"dedupe_by returned the key \['a'\].*Return a string"
    with Harness(dedupe_by=list) as harness, pytest.raises(TypeError, match=message):
        harness.process("a")
