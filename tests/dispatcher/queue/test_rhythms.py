"""Cron expressions over both changes of the clocks, missed times, and rhythms that come back by themselves."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    DispatcherError,
    DispatcherGroup,
    JournalConfig,
    JournalError,
    JournalWriter,
    MultiDispatcher,
)
from dispatcher.journal import recover
from dispatcher.mailbox import ManualClock
from dispatcher.testing import InlineDispatcher

from ...kit import TIMEOUT_S, Gate, Numbered, Work, in_threads, until
from ...kit.commands import run_here
from ...kit.journals import Job, Posted, after_a_crash, line_of_a_rhythm
from .conftest import OfKey, partitioned, running

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def ms(iso: str) -> int:
    return int(datetime.fromisoformat(iso).replace(tzinfo=UTC).timestamp() * 1000)


def utc(unix_s: float | None) -> str:
    return datetime.fromtimestamp(unix_s or 0, UTC).strftime("%m-%d %H:%M")


class FakeWallClock:
    """The system's wall clock, which stands still until it is set: a busy machine makes no time late."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, iso: str) -> None:
        self.set(iso)
        monkeypatch.setattr("dispatcher.queue.schedule._WALL_LOOK_NS", 1_000_000)
        monkeypatch.setattr(time, "time_ns", lambda: self._now_ns)

    def set(self, iso: str) -> None:
        self._now_ns = ms(iso) * 1_000_000


class TestChangesOfTheClocks:
    @pytest.mark.parametrize(
        ("cron", "tz", "since", "expected"),
        [
            # At 01:00 UTC on March 29, 2:00 becomes 3:00.
            ("30 2 * * *", BERLIN, "2026-03-28T00:00", ["03-28 01:30", "03-29 01:00", "03-30 00:30"]),
            ("0 2,3 * * *", BERLIN, "2026-03-28T23:00", ["03-29 01:00", "03-30 00:00", "03-30 01:00"]),
            ("0 7 * * *", BERLIN, "2026-03-28T00:00", ["03-28 06:00", "03-29 05:00", "03-30 05:00"]),
            ("30 * * * *", BERLIN, "2026-03-29T00:00", ["03-29 00:30", "03-29 01:30", "03-29 02:30"]),
            ("*/30 2 * * *", BERLIN, "2026-03-28T00:00", ["03-28 01:00", "03-28 01:30", "03-30 00:00"]),
            # At 01:00 UTC on October 25, 3:00 becomes 2:00.
            ("30 2 * * *", BERLIN, "2026-10-24T00:00", ["10-24 00:30", "10-25 00:30", "10-26 01:30"]),
            ("30 2 * * *", BERLIN, "2026-10-25T01:10", ["10-26 01:30"]),
            ("0 7 * * 1-5", BERLIN, "2026-10-23T00:00", ["10-23 05:00", "10-26 06:00"]),
            ("30 * * * *", BERLIN, "2026-10-25T00:00", ["10-25 00:30", "10-25 01:30", "10-25 02:30"]),
            ("*/30 2 * * *", BERLIN, "2026-10-25T00:30", ["10-25 01:00", "10-25 01:30", "10-26 01:00"]),
            # At 07:00 UTC on March 8, and at 06:00 UTC on November 1.
            ("30 2 * * *", NEW_YORK, "2026-03-08T00:00", ["03-08 07:00", "03-09 06:30"]),
            ("30 1 * * *", NEW_YORK, "2026-11-01T00:00", ["11-01 05:30", "11-02 06:30"]),
            # By half an hour, at 15:30 UTC on October 3.
            ("15 2 * * *", LORD_HOWE, "2026-10-03T00:00", ["10-03 15:30", "10-04 15:15"]),
        ],
    )
    def test_each_time_of_day_comes_once_and_what_begins_with_a_star_follows_the_time_that_passes(
        self, cron: str, tz: str, since: str, expected: list[str]
    ) -> None:
        clock, seen, dues = ManualClock(ms(since)), [], []
        dispatcher = InlineDispatcher(clock=clock)
        dispatcher.register(Work, lambda event: seen.append(utc(clock.current_processing_time() / 1000)))
        job = dispatcher.post_every(event=Numbered(), cron=cron, tz=tz)

        for _ in expected:
            dues.append(utc(job.due))
            assert job.due is not None
            clock.advance(int(job.due * 1000) - clock.current_processing_time())

        assert seen == dues == expected

    def test_it_follows_a_wall_clock_that_jumps_over_a_change(self, monkeypatch: pytest.MonkeyPatch) -> None:
        wall = FakeWallClock(monkeypatch, "2026-03-28T23:59")
        gate = Gate()
        gate.opened.set()
        dispatcher = AsyncDispatcher()
        dispatcher.register(Work, gate.handle)
        with dispatcher:
            every = dispatcher.post_every(cron="0 7 * * *", tz=BERLIN, event=Numbered(1))
            assert utc(every.due) == "03-29 05:00"
            wall.set("2026-03-29T05:00")
            assert gate.entered.wait(TIMEOUT_S)
            assert (utc(every.last_fired), utc(every.due)) == ("03-29 05:00", "03-30 05:00")

            wall.set("2026-03-29T04:59")  # no time is posted twice
            dispatcher.post_at(ms("2026-03-29T04:58") / 1000, Numbered(2))
            until(lambda: len(gate.events) == 2, "it has seen that")
            assert ([event.number for event in gate.events], utc(every.due)) == ([1, 2], "03-30 05:00")

            wall.set("2021-03-29T12:00")  # the clock was years ahead
            until(lambda: every.due == ms("2021-03-30T05:00") / 1000, "it goes on with the next time")


@pytest.mark.parametrize("kind", ["async", "multi", "group", "inline"])
def test_every_dispatcher_has_cron(kind: str) -> None:
    clock, seen = ManualClock(ms("2026-10-23T04:59")), []
    one: Any = None
    if kind == "inline":
        service = one = InlineDispatcher(clock=clock)
    elif kind == "multi":
        service = one = MultiDispatcher(partitions=2, time_service=clock)
    else:
        service = one = AsyncDispatcher(time_service=clock)
        service = DispatcherGroup([one]) if kind == "group" else one
    one.register(Work, lambda event: seen.append(utc(clock.current_processing_time() / 1000)))
    with service:
        job = one.post_every(cron="0 7 * * 1-5", tz=BERLIN, event=Numbered(), key="report")
        assert one.scheduled()["report"].rule == {"cron": "0 7 * * 1-5", "tz": BERLIN}
        clock.advance(60_000)
        assert kind == "inline" or service.await_drained(TIMEOUT_S)
        assert (utc(job.last_fired), utc(job.due)) == ("10-23 05:00", "10-26 06:00")

    assert seen == ["10-23 05:00"]


RULES = {"cron": {"cron": "0 7 * * *"}, "seconds": {"seconds": 86_400.0, "first": 3600}}
MISFIRES: list[tuple[dict[str, Any], int]] = [
    # Those of three mornings have passed, and it is 12:00.
    ({}, 1),
    ({"misfire": "once", "misfire_grace_s": 6 * 3600}, 1),
    ({"misfire": "once", "misfire_grace_s": 4 * 3600}, 0),
    ({"misfire": "all"}, 3),
    ({"misfire": "all", "misfire_grace_s": 30 * 3600}, 2),
    ({"misfire": "skip"}, 0),
    ({"misfire": "skip", "misfire_grace_s": 6 * 3600}, 1),
]


def misfires(first: str, second: str) -> Any:
    """What becomes of missed times, by the two kinds of rules in turns: the two have nothing to do with each other."""
    rows = [(kind, *row) for kind, row in zip(cycle((first, second)), MISFIRES)]
    return pytest.mark.parametrize(("kind", "misfire", "posts"), rows)


class TestMissedTimes:
    @misfires("cron", "seconds")
    def test_after_days_without_the_process(self, tmp_path: Path, kind: str, misfire: Any, posts: int) -> None:
        seen: list[str] = []
        clock = ManualClock(ms("2026-07-01T06:00"))
        handle = lambda event: seen.append(utc(clock.current_processing_time() / 1000))  # noqa: E731
        with running(tmp_path, clock, handle) as dispatcher:
            dispatcher.post_every(event=Posted(Job.STARTED, 1), key="report", **RULES[kind], **misfire)
            clock.advance(3_600_000)
            assert dispatcher.await_drained(TIMEOUT_S)

        clock = ManualClock(ms("2026-07-04T12:00"))
        with running(tmp_path, clock, handle) as dispatcher:
            clock.advance(0)
            assert dispatcher.await_drained(TIMEOUT_S)
            assert dispatcher.stats().scheduled_skipped == 3 - posts
            report = dispatcher.scheduled()["report"]
            assert (utc(report.last_fired), utc(report.due)) == (
                "07-04 07:00" if posts else "07-01 07:00",
                "07-05 07:00",
            )

        assert seen == ["07-01 07:00", *["07-04 12:00"] * posts]

    @misfires("seconds", "cron")
    def test_after_a_stall(
        self, tmp_path: Path, kind: str, misfire: Any, posts: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The machine slept, or a handler held the thread."""
        wall = FakeWallClock(monkeypatch, "2026-07-01T06:00")
        seen: list[str] = []
        dispatcher = AsyncDispatcher(journal=JournalWriter(tmp_path, JournalConfig(write_ahead=True)))
        dispatcher.register(Job, lambda event: seen.append(utc(time.time_ns() / 1e9)), events=Posted)
        with dispatcher:
            report = dispatcher.post_every(event=Posted(Job.STARTED, 1), key="report", **RULES[kind], **misfire)
            wall.set("2026-07-01T07:00:00.900")
            until(lambda: len(seen) == 1, "it has fired")

            wall.set("2026-07-04T12:00")
            until(lambda: utc(report.due) == "07-05 07:00", "it has made up for them")

        assert seen == ["07-01 07:00", *["07-04 12:00"] * posts]

    @pytest.mark.parametrize("rule", [{"cron": "* * * * *"}, {"cron": "*/2 7 * 1,7 *"}, {"seconds": 60}])
    def test_all_is_the_newest_hundred(self, tmp_path: Path, rule: Any, caplog: pytest.LogCaptureFixture) -> None:
        clock, seen = ManualClock(ms("2026-01-01T00:00")), []
        with running(tmp_path, clock) as dispatcher:
            dispatcher.post_every(event=Posted(Job.STARTED, 1), key="report", misfire="all", **rule)

        clock = ManualClock(ms("2026-08-01T00:00"))
        with running(tmp_path, clock, lambda event: seen.append(1)) as dispatcher:
            clock.advance(0)
            assert dispatcher.await_drained(TIMEOUT_S)
            last = dispatcher.scheduled()["report"].last_fired

        assert len(seen) == 100
        assert utc(last) == ("07-31 07:58" if "7" in rule.get("cron", "") else "08-01 00:00")
        assert "missed times are not posted" in caplog.text


class TestComingBack:
    """A copy of the folder is what a kill -9 leaves."""

    def test_a_job_comes_back_without_the_code_that_added_it(self, tmp_path: Path) -> None:
        clock = ManualClock(ms("2026-03-28T00:00"))
        with running(tmp_path / "journal", clock) as dispatcher:
            dispatcher.post_every(
                cron="30 2 * * *", tz=BERLIN, event=Posted(Job.STARTED, 1), key="a", misfire="all", misfire_grace_s=60
            )
            dispatcher.post_every(7200, Posted(Job.STARTED, 2), key="b", jitter=0.01)
            clock.advance(2 * 3_600_000 + 120_000)
            assert dispatcher.await_drained(TIMEOUT_S)
            crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")

        seen: list[int] = []
        clock = ManualClock(ms("2026-03-28T03:00"))
        with running(crashed, clock, lambda event: seen.append(event.number)) as dispatcher:
            found = dispatcher.scheduled()
            assert {key: (utc(one.last_fired), utc(one.due), one.rule, one.event) for key, one in found.items()} == {
                "a": (
                    "03-28 01:30",
                    "03-29 01:00",
                    {"cron": "30 2 * * *", "tz": BERLIN, "misfire": "all", "misfire_grace_s": 60},
                    Posted(Job.STARTED, 1),
                ),
                "b": ("03-28 02:00", "03-28 04:00", {"seconds": 7200, "jitter": 0.01}, Posted(Job.STARTED, 2)),
            }
            assert dispatcher.await_drained(TIMEOUT_S)
            seen.clear()  # of those that were in hand
        clock = ManualClock(ms("2026-03-29T01:00"))
        with running(crashed, clock, lambda event: seen.append(event.number)) as dispatcher:
            clock.advance(0)
            assert dispatcher.await_drained(TIMEOUT_S)
        listed = run_here("journal", "scheduled", crashed)

        assert seen == [2, 1]
        assert "cron 30 2 * * * Europe/Berlin, misfire=all, misfire_grace_s=60" in listed.out

    @pytest.mark.parametrize(("lock_key", "after"), [("a", 1), ("b", 2), ("c", 3), ("d", 2), ("a", 3), ("b", 3)])
    def test_it_is_posted_in_the_partition_of_its_event(self, tmp_path: Path, lock_key: str, after: int) -> None:
        clock, seen = ManualClock(ms("2026-01-01T00:00")), []
        with partitioned(tmp_path / "journal", clock, print, 2) as first:
            first.post_every(cron="0 7 * * *", event=OfKey(Job.STARTED, 1, lock_key), key="report")
            crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")

        for day in range(1, 4):
            clock = ManualClock(ms(f"2026-01-0{day}T08:00"))
            with partitioned(crashed, clock, lambda _: seen.append(second._handling_partition()), after) as second:
                clock.advance(0)
                assert second.await_drained(TIMEOUT_S)
                crashed = after_a_crash(crashed, tmp_path / f"crashed {day}")
            assert seen[day - 1 :] == [second.partition_of(OfKey(Job.STARTED, 1, lock_key))]

    def test_a_job_whose_class_is_no_longer_declared_waits_in_the_journal(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = ManualClock(ms("2026-01-01T00:00"))
        with running(tmp_path, clock) as dispatcher:
            dispatcher.post_every(cron="0 7 * * *", event=Posted(Job.STARTED, 1), key="report")
        with running(tmp_path, clock, events=OfKey) as dispatcher:
            assert dispatcher.scheduled()["report"].event is None
        assert "post_every(key='report') does not go on" in caplog.text

        with running(tmp_path, clock) as dispatcher:
            assert dispatcher.scheduled()["report"].event == Posted(Job.STARTED, 1)
            assert dispatcher.cancel("report")
        assert not recover(tmp_path).accepted

    def test_a_rhythm_of_an_earlier_release_goes_on_once_it_is_asked_for(self, tmp_path: Path) -> None:
        """It wrote neither the event nor the rule."""
        writer = JournalWriter(tmp_path, JournalConfig(write_ahead=True))
        due_ns = ms("2026-01-01T07:00") * 1_000_000
        writer.append_accepted(line_of_a_rhythm(due_ns=due_ns, key="report"))
        writer.close()

        seen: list[int] = []
        clock = ManualClock(ms("2026-01-01T08:00"))
        with running(tmp_path, clock, lambda event: seen.append(event.number)) as dispatcher:
            found = dispatcher.scheduled()["report"]
            assert (found.event, found.rule, utc(found.due)) == (None, {}, "01-01 07:00")
            every = dispatcher.post_every(86_400, Posted(Job.STARTED, 1), key="report")
            clock.advance(0)
            assert dispatcher.await_drained(TIMEOUT_S)
            assert (seen, utc(every.due)) == ([1], "01-02 07:00")

    def test_a_start_names_the_extra_that_a_job_needs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = ManualClock(ms("2026-01-01T00:00"))
        with running(tmp_path, clock) as dispatcher:
            dispatcher.post_every(cron="0 7 * * *", event=Posted(Job.STARTED, 1), key="report")
        monkeypatch.setitem(sys.modules, "cronsim", None)

        with pytest.raises(DispatcherError, match=r"central-dispatcher\[cron\]"), running(tmp_path, clock):
            pass

    def test_a_rule_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        writer = JournalWriter(tmp_path, JournalConfig(write_ahead=True))
        writer.append_accepted(line_of_a_rhythm(due_ns=1, key="report", rule={"moon": "full"}))
        writer.close()

        with pytest.raises(JournalError, match=r"key='report'.*--forget KEY"), running(tmp_path, ManualClock()):
            pass


@pytest.mark.parametrize("repeat", range(3))
def test_of_many_that_take_a_key_while_it_fires_one_is_left(tmp_path: Path, repeat: int) -> None:
    clock = ManualClock(ms("2026-01-01T00:00"))
    with running(tmp_path / "journal", clock) as dispatcher:

        def replace(number: int) -> None:
            for each in range(10):
                dispatcher.post_every(number + each / 10, Posted(Job.STARTED, number), key="report")

        in_threads(lambda: replace(1), lambda: replace(2), lambda: [clock.advance(100) for _ in range(100)])
        [left] = dispatcher.scheduled().values()
        assert dispatcher.stats().scheduled == 1
        crashed = after_a_crash(tmp_path / "journal", tmp_path / "crashed")

    with running(crashed, clock) as dispatcher:
        [again] = dispatcher.scheduled().values()
        assert (again.rule, again.event) == (left.rule, left.event)


@pytest.mark.parametrize("make", [AsyncDispatcher, MultiDispatcher, InlineDispatcher])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, "takes a number of seconds or cron='...', and got neither"),
        ({"seconds": 1, "cron": "0 7 * * *"}, ValueError, "seconds or cron=, not both"),
        ({"cron": "0 7 * *"}, ValueError, "cron must have five fields.*'0 7 \\* \\*': it has 4 fields"),
        ({"cron": "0 0 7 * * *"}, ValueError, "five fields"),
        ({"cron": "0 25 * * *"}, ValueError, "five fields.*Bad hour"),
        ({"cron": "0 0 30 2 *"}, ValueError, "Bad day-of-month"),
        ({"cron": 7}, TypeError, "cron must be a str such as '0 7 \\* \\* 1-5', not 7"),
        ({"cron": "0 7 * * *", "tz": "Europe/Berln"}, ValueError, "no time zone 'Europe/Berln'. Did you mean 'Europe/"),
        ({"cron": "0 7 * * *", "tz": "../etc"}, ValueError, "no time zone"),
        ({"cron": "0 7 * * *", "tz": "Europe"}, ValueError, "no time zone"),
        ({"cron": "0 7 * * *", "tz": None}, TypeError, "tz must be the name of a time zone"),
        ({"cron": "0 7 * * *", "first": 1}, ValueError, "first and jitter go with seconds"),
        ({"cron": "0 7 * * *", "jitter": 0.5}, ValueError, "first and jitter go with seconds"),
        ({"seconds": 1, "tz": BERLIN}, ValueError, "tz='Europe/Berlin' goes with cron="),
        ({"seconds": 1, "misfire": "twice"}, ValueError, "misfire must be 'once', 'all' or 'skip', not 'twice'"),
        ({"seconds": 1, "misfire_grace_s": -1}, ValueError, "misfire_grace_s must be a number of seconds"),
        ({"seconds": 1, "misfire_grace_s": "1"}, TypeError, "misfire_grace_s must be a number"),
        ({"seconds": 1, "event": None}, TypeError, "takes an event or a callable"),
    ],
)
def test_wrong_arguments_are_named(make: Any, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make().post_every(**{"event": Numbered()} | arguments)


def test_the_extra_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)

    with pytest.raises(DispatcherError, match=r"no module cronsim.*pip install 'central-dispatcher\[cron\]'"):
        AsyncDispatcher().post_every(cron="0 7 * * *", event=Numbered())
