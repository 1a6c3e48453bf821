"""Parts of pages by themselves: the timeline, curves, formats, and what is known of why applications wait."""

from __future__ import annotations

import asyncio
import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher import JournalError
from dispatcher.ops.entities import FoundHistory, HistoryEntry, WantedHistory
from dispatcher.web.waiting import Workers

from ....simulation.replays import TIMEOUT_S
from ...inner import WaitCause, WaitReason
from ..inner import cluster_texts, histories, page_texts, timeline

pytestmark = pytest.mark.long


def bars(svg: str) -> list[tuple[str, float, float]]:
    """Style, x and width of each bar, in percent of the width."""
    found = re.findall(r'<rect class="(\w+)" x="([\d.]+)%" y="[\d.]+" width="([\d.]+)%"', svg)
    return [(style, float(x), float(width)) for style, x, width in found]


Entered = histories.Entered
WAITS = [Entered(100, "ACCEPTED"), Entered(600, "RUNNING"), Entered(1100, "FINISHED")]
FAILS = [Entered(0, "RUNNING", "ACQUIRED"), Entered(500, "COMPLETED", "RUNNING")]
LIVES, KILLED = [Entered(0, "RUNNING")], [Entered(0, "RUNNING"), Entered(500, "KILLED")]
Bars = list[tuple[str, float, float]]
TIMELINES: dict[str, tuple[list[tuple[list[Entered], str]], tuple[int, int, int | None], Bars, str]] = {
    "each stretch is on one axis": (
        [(WAITS, "")],
        (9999, 100, 1100),
        [("wait", 0.0, 50.0), ("good", 50.0, 50.0)],
        "RUNNING for 500 ms, from 00:00:00 UTC, then FINISHED",
    ),
    # A container that had failed was drawn as completed: its state is COMPLETED in both cases.
    "the exit status decides how a container is drawn": (
        [(FAILS, "exit status 1")],
        (1000, 0, 1000),
        [("bad", 0.0, 50.0)],
        "then COMPLETED, exit status 1",
    ),
    "what goes on reaches to now and what failed is marked": (
        [(LIVES, ""), (KILLED, "")],
        (1000, 0, None),
        [("run", 0.0, 100.0), ("bad", 0.0, 50.0)],
        "",
    ),
}


@pytest.mark.parametrize(("courses", "axis", "drawn", "said"), TIMELINES.values(), ids=TIMELINES)
def test_timeline(
    courses: list[tuple[list[Entered], str]], axis: tuple[int, int, int | None], drawn: Bars, said: str
) -> None:
    rows = [timeline.row_of("it", "id", moves, failure=failure) for moves, failure in courses]

    svg = timeline.draw(rows, axis[0], begin_ms=axis[1], end_ms=axis[2])

    assert (bars(svg), said in svg) == (drawn, True)


def test_what_is_not_known_of_the_beginning_is_drawn_as_the_state_that_the_first_known_move_left() -> None:
    row = timeline.row_of("attempt 1", "a", [histories.Entered(800, "FINISHED", "RUNNING")], begun_ms=0)

    assert [bar.state for bar in row.bars] == ["RUNNING"]


def test_titles_in_a_timeline_are_texts() -> None:
    row = timeline.row_of("<b>", "<script>", [histories.Entered(0, "<i>")])

    svg = timeline.draw([row], now_ms=1, begin_ms=0, end_ms=None)

    assert not re.search(r"<(b|script|i)>", svg)


@pytest.mark.parametrize("span_ms", [0, 1, 999, 60_000, 10**7, 10**9, 10**12])
def test_an_axis_has_a_few_marks_whatever_its_length(span_ms: int) -> None:
    row = timeline.row_of("a", "a", [histories.Entered(0, "RUNNING")])

    svg = timeline.draw([row], now_ms=span_ms, begin_ms=0, end_ms=None)

    assert 1 <= svg.count("<line") <= 12
    assert svg.count("<text") == svg.count("<line")


def test_texts_from_outside_are_cut_and_show_unseen_characters() -> None:
    assert page_texts.shown("x" * 100, 10) == "xxxxxxx..."
    assert page_texts.shown("a\u202eb\x00\ud800", 80) == r"a\u202eb\x00\ud800"
    assert page_texts.paragraph("one\ntwo\x1b<b>") == "one\ntwo\\x1b&lt;b&gt;"
    assert page_texts.moment(10**18) == page_texts.NOTHING


def test_a_sentence_is_cut_between_words_and_never_within_a_number() -> None:
    """The list showed "8,192 MB of the 16,3..."."""
    assert page_texts.words("it has 8,192 MB of 16,384 MB", 26) == "it has 8,192 MB of ..."
    assert page_texts.words("it has 8,192 MB", 26) == "it has 8,192 MB"


def test_the_queue_the_node_and_the_user_of_a_sentence_are_links() -> None:
    sentence = "user node has used 1 GB in queue root.a of node n1:1, not n1:10 nor <b>root.a"
    reason = WaitReason(WaitCause.USER_LIMIT, sentence, "root.a", "node", "n1:1")

    linked = cluster_texts.linked(sentence, reason)

    assert linked == (
        'user <a href="/cluster/apps?user=node">node</a> has used 1 GB in queue '
        '<a href="/cluster/apps?queue=root.a">root.a</a> of node <a href="/cluster/node/n1%3A1">n1:1</a>, '
        "not n1:10 nor &lt;b&gt;root.a"
    )


def test_a_curve_of_one_value_is_empty() -> None:
    assert "<path" not in page_texts.sparkline([1.0])
    assert page_texts.sparkline([0.0, 2.0, 1.0]).count("<path") == 2


def test_a_page_does_not_wait_for_a_history_that_takes_long_and_has_it_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A journal that has to be searched far back held up the whole page."""
    may_answer = threading.Event()

    def read(wanted: WantedHistory) -> FoundHistory:
        assert may_answer.wait(TIMEOUT_S)
        return FoundHistory([HistoryEntry(at=1, from_state="NEW", to_state="RUNNING")], None, is_complete=True)

    monkeypatch.setattr(histories, "readers_now", lambda: [read])
    monkeypatch.setattr(histories, "_PATIENCE_S", 0.01)

    async def course() -> tuple[int, list[histories.Entered]]:
        looked_up = histories.Histories(Workers())
        at_first = len(await looked_up.of(["a"]))
        may_answer.set()
        monkeypatch.setattr(histories, "_PATIENCE_S", TIMEOUT_S)
        return at_first, list((await looked_up.of(["a"]))["a"])

    at_first, then = asyncio.run(course())

    assert (at_first, [move.state for move in then]) == (0, ["RUNNING"])


def test_what_was_looked_up_is_kept_up_to_a_number_of_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more than half of that number, the newest went as well: a page had no bars for what it had just asked."""
    asked: list[str] = []

    def read(wanted: WantedHistory) -> FoundHistory:
        asked.append(wanted.entity)
        return FoundHistory([HistoryEntry(at=1, from_state="NEW", to_state="RUNNING")], None, is_complete=True)

    monkeypatch.setattr(histories, "readers_now", lambda: [read])
    monkeypatch.setattr(histories, "_KEPT", 4)
    for name in ("_PATIENCE_S", "_LONGEST_S", "_FRESH_S"):
        monkeypatch.setattr(histories, name, TIMEOUT_S)

    async def course() -> list[str]:
        looked_up = histories.Histories(Workers())
        return ["".join(await looked_up.of(ids)) for ids in ("abc", "de", "bcde", "a")]

    assert asyncio.run(course()) == ["abc", "de", "bcde", "a"]
    assert "".join(asked) == "abcdea"


def test_a_journal_that_cannot_be_read_leaves_a_page_without_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of an application that the recorder had forgotten was an error."""

    def fail(*_: object, **options: object) -> None:
        raise JournalError("the journal cannot be read")

    monkeypatch.setattr(histories, "readers_answer", fail)

    async def history() -> object:
        site: Any = SimpleNamespace(rm=SimpleNamespace(workers=Workers()))
        sight: Any = None  # readers make use of it
        return await histories.history_of(site, "application_1_0001", sight)

    assert asyncio.run(history()) is None
