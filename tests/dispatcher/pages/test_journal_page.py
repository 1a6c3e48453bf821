"""The page of a journal, beside its writer."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher import JournalError
from dispatcher.ops import ops_app
from dispatcher.pages.lookups import Looked, Lookups
from dispatcher.web.waiting import Workers

from ..ops.client import WAIT_S, Client
from ..ops.journaled import Journaled, journaled_by
from .test_entities_page import page

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def journaled(tmp_path: Path) -> Iterator[Journaled]:
    with journaled_by(tmp_path / "journal") as found:
        yield found


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page waits for its look-ups until they have ended."""
    monkeypatch.setattr("dispatcher.pages.lookups._PATIENCE_S", WAIT_S)


@pytest.fixture
def client(patient: None) -> Client:
    return Client(ops_app(), prefix="")


def test_it_shows_size_segments_and_the_last_events_newest_first(client: Client, journaled: Journaled) -> None:
    text = page(client, "/journal")

    assert "being written" in text
    assert "none seen" in text
    assert str(journaled.path) in text
    tail = text.partition('id="part-tail"')[2]
    assert [int(seq) for seq in re.findall(r'<tr><td class="number c2">(\d+)<', tail)][:3] == [103, 102, 101]
    assert "OSError: no" in text


def test_the_last_events_are_filtered_and_come_in_pages(client: Client, journaled: Journaled) -> None:
    filtered = page(client, "/journal", event_type="STOP", entity="thing_0")
    earlier = page(client, "/journal", before="42")

    assert "GO</td>" not in filtered
    assert "thing_0</a>" in filtered
    assert "thing_1</a>" not in filtered
    assert "Events before 42" in earlier
    assert ">41<" in earlier
    assert ">43<" not in earlier
    assert 'rel="next" href="/journal?dispatcher=central&amp;before=4"' in page(client, "/journal")


def test_damage_is_an_alert_and_a_check_of_every_byte_says_what_it_has_found(
    client: Client, journaled: Journaled
) -> None:
    first, second, *_ = sorted(journaled.path.glob("segment-*.journal"))
    second.unlink()

    text, checked = page(client, "/journal"), page(client, "/journal", check="1")

    assert f'<p class="alert">{second.name}: is missing</p>' in text
    assert "Every byte was checked" in checked
    assert second.name in checked
    assert 'id="part-tail"' not in checked
    assert first.exists()


def test_a_journal_that_cannot_be_read_leaves_a_page_that_says_so(client: Client, journaled: Journaled) -> None:
    moved = journaled.path.rename(journaled.path.with_name("moved"))

    text, answer = page(client, "/journal"), client.error("/v1/journal/tail")

    moved.rename(journaled.path)
    assert answer == (503, f"{journaled.path}: no such journal folder")
    assert f'<p class="alert">{journaled.path}: no such journal folder</p>' in text


def test_one_of_several_journals_is_chosen(client: Client, journaled: Journaled, tmp_path: Path) -> None:
    with journaled_by(tmp_path / "other", "other", events=3):
        first, second = page(client, "/journal"), page(client, "/journal", dispatcher="other")
        unnamed, named = client.error("/v1/journal/tail"), client.json("/v1/journal/tail", dispatcher="other")

    said = "several dispatchers have a journal; choose dispatcher=central or dispatcher=other"
    assert (unnamed, [row["seq"] for row in named["items"]]) == ((400, said), [1, 2, 3])
    assert '<a href="/journal?dispatcher=other">other</a>' in first
    assert str(tmp_path / "other") in second
    assert client.get("/journal", dispatcher="nobody").status_code == 404


def test_without_a_journal_the_page_says_how_to_have_one(client: Client) -> None:
    assert "JournalWriter(folder)" in page(client, "/journal")


# -- look-ups ----------------------------------------------------------------------------------------------------------


def test_a_look_up_that_takes_long_is_shown_when_it_is_asked_for_again() -> None:
    release = threading.Event()

    async def ask() -> list[Looked]:
        looks = Lookups(Workers(most=1))
        first = await looks.look("tail", lambda: release.wait(WAIT_S))
        release.set()
        while (second := await looks.look("tail", lambda: None)).value is None:
            pass
        return [first, second]

    first, second = asyncio.run(ask())

    assert (first.value, first.problem) == (None, "It is being read.")
    assert second.value is True


@pytest.mark.usefixtures("patient")
def test_look_ups_of_many_pages_are_made_one_after_another_and_shared() -> None:
    made: list[str] = []

    async def ask() -> None:
        looks = Lookups(Workers(most=1), clock_s=lambda: 0.0)
        await asyncio.gather(*(looks.look(key, lambda key=key: made.append(key)) for key in "abab" * 5))  # type: ignore[misc]

    asyncio.run(ask())

    assert sorted(made) == ["a", "b"]


def test_look_ups_for_ever_new_things_are_refused_before_many_wait() -> None:
    release = threading.Event()

    async def ask() -> list[Looked]:
        looks = Lookups(Workers(most=1))
        alone = [asyncio.ensure_future(looks.look(None, lambda: release.wait(WAIT_S))) for _ in range(5)]
        found = [await looks.look(key, lambda: None) for key in range(50)]
        release.set()
        return [*found, *await asyncio.gather(*alone)]

    found = asyncio.run(ask())

    refused = [each for each in found if each.problem.startswith("Too much else")]
    assert (len(refused), len(found) - len(refused)) == (47, 8)
    assert [each.value for each in found[-5:]] == [True] * 5


@pytest.mark.usefixtures("patient")
def test_a_look_up_is_made_again_after_twenty_times_what_it_took() -> None:
    now_s, made = [0.0], []

    def read() -> int:
        now_s[0] += 0.5
        made.append(now_s[0])
        return len(made)

    async def ask() -> list[int]:
        looks, found = Lookups(Workers(most=1), clock_s=lambda: now_s[0]), []
        for at_s in (0.0, 10.0, 10.4, 10.6):
            now_s[0] = max(now_s[0], at_s)
            found.append((await looks.look("tail", read)).value)
        return found

    assert asyncio.run(ask()) == [1, 1, 1, 2]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("error", "problem"),
    [(JournalError("it is gone"), "it is gone"), (KeyError("kind"), "KeyError: 'kind'")],
)
def test_a_look_up_that_fails_has_its_reason(error: Exception, problem: str) -> None:
    def fail() -> None:
        raise error

    async def ask() -> Looked:
        return await Lookups(Workers(most=1)).look("tail", fail)

    assert asyncio.run(ask()) == Looked(None, problem)
