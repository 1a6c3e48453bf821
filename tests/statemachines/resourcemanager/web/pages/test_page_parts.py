"""Parts of pages by themselves: the timeline, curves, formats, and what is known of why applications wait."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Collection
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher import JournalError
from dispatcher.ops.entities import FoundHistory, HistoryEntry, WantedHistory
from dispatcher.pages import page_texts
from dispatcher.web.waiting import Workers
from statemachines.resourcemanager.read.waits import KEPT_S, Known
from statemachines.resourcemanager.web.pages import cluster_texts, histories, timeline

from ....simulation.replays import TIMEOUT_S
from ...inner import WaitCause, WaitingReport, WaitingReports, WaitReason

pytestmark = pytest.mark.long


def bars(svg: str) -> list[tuple[str, float, float]]:
    """Style, x and width of each bar, in percent of the width."""
    found = re.findall(r'<rect class="(\w+)" x="([\d.]+)%" y="[\d.]+" width="([\d.]+)%"', svg)
    return [(style, float(x), float(width)) for style, x, width in found]


def test_a_timeline_shows_each_stretch_on_one_axis() -> None:
    row = timeline.row_of(
        "app",
        "application_1_0001",
        [histories.Entered(100, "ACCEPTED"), histories.Entered(600, "RUNNING"), histories.Entered(1100, "FINISHED")],
    )
    assert row is not None

    svg = timeline.draw([row], now_ms=9999, begin_ms=100, end_ms=1100)

    assert bars(svg) == [("wait", 0.0, 50.0), ("good", 50.0, 50.0)]
    assert "RUNNING for 500 ms, from 00:00:00 UTC, then FINISHED" in svg


def test_the_exit_status_decides_how_a_container_is_drawn() -> None:
    """A container that had failed was drawn as completed: its state is COMPLETED in both cases."""
    moves = [histories.Entered(0, "RUNNING", "ACQUIRED"), histories.Entered(500, "COMPLETED", "RUNNING")]
    failed = timeline.row_of("container 2", "c", moves, failure="exit status 1")
    assert failed is not None

    svg = timeline.draw([failed], now_ms=1000, begin_ms=0, end_ms=1000)

    assert bars(svg) == [("bad", 0.0, 50.0)]
    assert "then COMPLETED, exit status 1" in svg


def test_what_is_not_known_of_the_beginning_is_drawn_as_the_state_that_the_first_known_move_left() -> None:
    row = timeline.row_of("attempt 1", "a", [histories.Entered(800, "FINISHED", "RUNNING")], begun_ms=0)
    assert row is not None

    assert [bar.state for bar in row.bars] == ["RUNNING"]


def test_what_goes_on_reaches_to_now_and_what_failed_is_marked() -> None:
    live = timeline.row_of("live", "a", [histories.Entered(0, "RUNNING")])
    failed = timeline.row_of("failed", "b", [histories.Entered(0, "RUNNING"), histories.Entered(500, "KILLED")])
    assert live is not None
    assert failed is not None

    svg = timeline.draw([live, failed], now_ms=1000, begin_ms=0, end_ms=None)

    assert bars(svg) == [("run", 0.0, 100.0), ("bad", 0.0, 50.0)]


def test_titles_in_a_timeline_are_texts() -> None:
    row = timeline.row_of("<b>", "<script>", [histories.Entered(0, "<i>")])
    assert row is not None

    svg = timeline.draw([row], now_ms=1, begin_ms=0, end_ms=None)

    assert not re.search(r"<(b|script|i)>", svg)


@pytest.mark.parametrize("span_ms", [0, 1, 999, 60_000, 10**7, 10**9, 10**12])
def test_an_axis_has_a_few_marks_whatever_its_length(span_ms: int) -> None:
    row = timeline.row_of("a", "a", [histories.Entered(0, "RUNNING")])
    assert row is not None

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


def waiting(app_id: str, sentence: str) -> WaitingReport:
    return WaitingReport(app_id, 0, WaitReason(WaitCause.NO_ROOM, sentence))


def test_why_applications_wait_is_kept_for_a_second_and_longer_when_nothing_is_told() -> None:
    questions: list[tuple[str, ...]] = []
    is_told = True

    def ask(ids: Collection[str]) -> Future[list[WaitingReport]]:
        questions.append(tuple(ids))
        answer: Future[list[WaitingReport]] = Future()
        if is_told:
            answer.set_result([waiting(each, f"answer {len(questions)}") for each in ids if each != "gone"])
        else:
            answer.set_exception(TimeoutError("the handler thread hangs"))
        return answer

    async def course() -> list[dict[str, str | None]]:
        nonlocal is_told
        waits, seen = WaitingReports(ask), []

        async def look() -> None:
            found = await waits.known(["a", "gone"])
            seen.append({id: report.sentence for id, report in found.reports.items()})

        await look()
        await look()
        is_told = False
        for each in list(waits.kept):
            waits.kept[each] = waits.kept[each][0] - 10, waits.kept[each][1]
        await look()
        return seen

    seen = asyncio.run(course())

    assert seen == [{"a": "answer 1"}] * 3
    assert questions[0] == ("a", "gone")
    assert "a" not in questions[1]


def test_a_handler_thread_that_owes_an_answer_holds_up_no_further_page() -> None:
    """Each page waited for a second while a handler hung."""
    questions: list[Future[list[WaitingReport]]] = []

    def ask(ids: Collection[str]) -> Future[list[WaitingReport]]:
        questions.append(Future())
        if len(questions) > 1:
            questions[-1].set_result([waiting(each, "an answer") for each in ids])
        return questions[-1]

    async def course() -> tuple[list[Known], Known]:
        waits, pages = WaitingReports(ask), []
        pages.append(await waits.known(["a"]))
        for app_id in ("a", "b"):
            page = waits.known([app_id])
            with pytest.raises(StopIteration) as made:  # at the first step: it has waited for nothing
                page.send(None)
            pages.append(made.value.value)
        questions[0].set_result([waiting("a", "an answer")])
        await waits.reports(["b"])
        return pages, await waits.known(["a"])

    pages, afterwards = asyncio.run(course())

    assert [(dict(page.reports), set(page.late)) for page in pages] == [({}, {"a"}), ({}, {"a"}), ({}, {"b"})]
    assert (afterwards.reports["a"].sentence, afterwards.late) == ("an answer", frozenset())


def test_a_page_waits_for_nothing_while_a_handler_is_known_to_hang() -> None:
    """A page that came once a second waited for 30 ms each time, as long as the handler hung."""

    async def course() -> Known:
        waits = WaitingReports(lambda _: Future(), lambda: True)
        page = waits.known(["a"])
        with pytest.raises(StopIteration) as made:  # at the first step: it has waited for nothing
            page.send(None)
        found: Known = made.value.value
        return found

    assert asyncio.run(course()) == ({}, {"a"})


def test_why_applications_waited_is_forgotten_once_no_reader_has_asked_for_a_while() -> None:
    """It was kept of the last 5,000 applications, long after these had gone."""

    def ask(ids: Collection[str]) -> Future[list[WaitingReport]]:
        answer: Future[list[WaitingReport]] = Future()
        answer.set_result([waiting(each, "an answer") for each in ids])
        return answer

    async def course() -> set[str]:
        waits = WaitingReports(ask)
        await waits.known(["old", "older"])
        await waits.known(["new"])
        for each in ("old", "older"):
            waits.kept[each] = waits.kept[each][0] - KEPT_S - 1, waits.kept[each][1]
        await waits.known(["another"])
        return set(waits.kept)

    assert asyncio.run(course()) == {"new", "another"}


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
