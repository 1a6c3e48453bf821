"""The read model: when a change is visible, what it costs the handler thread, and what it shows while that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from statemachines.resourcemanager import (
    ApplicationSubmission,
    Resource,
    ResourceManager,
    ResourceManagerConfig,
    RMAppEventType,
    reports,
)

from ....kit.holding import held
from ..daemon.yarn_cluster import Yarn, ask, first_attempt
from ..inner import (
    CHOICES_KEPT,
    LONGEST_PAUSE_S,
    ModelPublisher,
    Publication,
    ReadModel,
    RMAppEvent,
    SpareTime,
    marks,
    pause_s,
)
from ..inner import publisher as module
from .reference import built_afresh, shown

pytestmark = pytest.mark.long

Look = Callable[[Yarn, ReadModel], Awaitable[None]]
TIMEOUT_S = 60.0
NEVER_MS = 60_000


@asynccontextmanager
async def following(manager: ResourceManager, refresh_ms: int = NEVER_MS) -> AsyncIterator[ReadModel]:
    """A model that has its first publication."""
    model = ReadModel(manager, refresh_ms)
    model.follow()
    await model.published(TIMEOUT_S)
    try:
        yield model
    finally:
        await model.close()


def with_model(refresh_ms: int = NEVER_MS, **settings: Any) -> Callable[[Look], Callable[[], None]]:
    """A test that is a coroutine, of a cluster of one node and a model that follows it."""

    def decorate(look: Look) -> Callable[[], None]:
        async def run(yarn: Yarn) -> None:
            async with following(yarn.manager, refresh_ms) as model, asyncio.timeout(TIMEOUT_S):
                await look(yarn, model)

        def test() -> None:
            with Yarn("node1", **settings) as yarn:
                asyncio.run(run(yarn))

        test.__name__, test.__doc__ = look.__name__, look.__doc__
        return test

    return decorate


def held_up(manager: ResourceManager, which: int = 0) -> AbstractContextManager[object]:
    """The handler thread of one of its dispatchers is busy with one mail."""
    return held(manager.dispatchers[which].mailbox_executor.execute, "a mail that hangs")


def publish(publisher: ModelPublisher) -> tuple[Publication, int]:
    """The next publication, and the mails that it took."""
    mails = 1
    while (publication := publisher.publish_some().result(TIMEOUT_S)) is None:
        mails += 1
    return publication, mails


# -- freshness ---------------------------------------------------------------------------------------------------------


@with_model()
async def test_several_that_wait_for_a_publication_share_it(yarn: Yarn, model: ReadModel) -> None:
    await asyncio.to_thread(yarn.submit)
    number = model.number
    await asyncio.gather(*[model.published(TIMEOUT_S) for _ in range(50)])
    assert model.number == number + 1


@with_model()
async def test_without_a_change_there_is_no_news_and_the_state_is_young(yarn: Yarn, model: ReadModel) -> None:
    await asyncio.to_thread(yarn.submit)
    await model.published(TIMEOUT_S)
    before = model.number, model.apps, model.nodes, model.queues
    await model.published(TIMEOUT_S)
    assert (model.number, model.apps, model.nodes, model.queues) == before
    assert model.age_ms() < TIMEOUT_S * 1000


@with_model()
async def test_a_heartbeat_is_no_news_but_its_time_is_known(yarn: Yarn, model: ReadModel) -> None:
    number, then = model.number, model.heartbeat_ms("node1:45454")
    assert then is not None
    await asyncio.to_thread(yarn.advance, 5_000)
    await asyncio.to_thread(yarn.heartbeat, "node1")

    await model.published(TIMEOUT_S)

    assert model.heartbeat_ms("node1:45454") == then + 5_000
    assert model.number == number
    assert model.heartbeat_ms("node2:45454") is None


@with_model()
async def test_the_references_that_a_reader_has_taken_are_never_changed(yarn: Yarn, model: ReadModel) -> None:
    app_id = await asyncio.to_thread(yarn.submit)
    await model.published(TIMEOUT_S)
    apps, containers = model.apps, model.containers
    master = await asyncio.to_thread(yarn.run, app_id)
    await asyncio.to_thread(master.get_running, ask())
    await model.published(TIMEOUT_S)

    assert apps[app_id].state == "ACCEPTED"
    assert len(containers[first_attempt(app_id)]) == 1
    assert model.apps[app_id].state == "RUNNING"
    assert len(model.containers[first_attempt(app_id)]) == 2


@pytest.mark.parametrize(
    ("first_idle_s", "second_idle_s", "spare"),
    [(1.0, 1.0, 1.0), (0.6, 0.9, 0.5), (0.4, 0.6, 0.0), (0.0, 0.0, 0.0)],
)
def test_the_spare_time_is_what_all_handler_threads_together_leave(
    first_idle_s: float, second_idle_s: float, spare: float
) -> None:
    idle_s, now_s = [0.0, 0.0], [100.0]
    time = SpareTime(len(idle_s), lambda: sum(idle_s), lambda: now_s[0])
    for _ in range(2):
        idle_s[0] += first_idle_s
        idle_s[1] += second_idle_s
        now_s[0] += 1.0
        assert time.share() == pytest.approx(spare)
    assert time.share() == 0.0, "no time has passed"


def test_publications_take_spare_time_and_little_of_a_busy_handler_thread() -> None:
    assert pause_s(20_000_000, 1.0) == pytest.approx(0.04)
    assert pause_s(20_000_000, 0.0) == pytest.approx(0.02 / 0.03)
    assert pause_s(10**12, 0.0) == LONGEST_PAUSE_S


# -- applications by state ---------------------------------------------------------------------------------------------


@with_model()
async def test_applications_in_some_states_are_those_of_the_last_publication_in_the_order_of_their_start(
    yarn: Yarn, model: ReadModel
) -> None:
    ids = [await asyncio.to_thread(yarn.submit) for _ in range(4)]
    await asyncio.to_thread(yarn.kill, ids[1])
    await model.published(TIMEOUT_S)
    waiting = model.apps_in(frozenset({"ACCEPTED"}))
    await asyncio.to_thread(yarn.kill, ids[2])
    await model.published(TIMEOUT_S)

    found = [
        [each.application_id for each in model.apps_in(states)]
        for states in (frozenset({"ACCEPTED"}), frozenset({"KILLED"}), frozenset({"ACCEPTED", "KILLED"}), None)
    ]

    assert found == [[ids[0], ids[3]], [ids[1], ids[2]], ids, ids]
    assert [each.application_id for each in waiting] == [ids[0], ids[2], ids[3]], "what was read is not changed"


@with_model()
async def test_an_application_that_alone_is_new_does_not_change_what_was_read(yarn: Yarn, model: ReadModel) -> None:
    states = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"})
    first = await asyncio.to_thread(yarn.submit)
    await model.published(TIMEOUT_S)
    before, reading = model.apps_in(states), iter(model.apps_in(None))
    assert [next(reading).application_id] == [each.application_id for each in before] == [first]

    second = await asyncio.to_thread(yarn.submit)
    await model.published(TIMEOUT_S)

    assert list(reading) == []
    assert [each.application_id for each in before] == [first]
    assert [each.application_id for each in model.apps_in(states)] == [first, second]


@with_model()
async def test_applications_in_some_states_are_looked_for_once_for_each_publication(
    yarn: Yarn, model: ReadModel
) -> None:
    await asyncio.to_thread(yarn.submit)
    await model.published(TIMEOUT_S)
    running = frozenset({"RUNNING"})

    first = model.apps_in(running)

    assert model.apps_in(frozenset({"RUNNING"})) is first
    for number in range(CHOICES_KEPT):
        model.apps_in(frozenset({f"STATE{number}"}))
    assert model.apps_in(running) is not first, "as many sets of states as clients ask for were kept"


# -- bounds ------------------------------------------------------------------------------------------------------------


@with_model(max_completed_applications=1)
async def test_forgotten_applications_leave_the_model(yarn: Yarn, model: ReadModel) -> None:
    ids = [await asyncio.to_thread(yarn.submit) for _ in range(3)]
    await model.published(TIMEOUT_S)
    assert list(model.apps) == ids
    for app_id in ids:
        await asyncio.to_thread(yarn.kill, app_id)

    await model.published(TIMEOUT_S)

    assert list(model.apps) == list(model.attempts) == ids[-1:]
    assert model.containers == {}


def test_changes_that_are_too_many_to_catch_up_with_are_left_to_the_next_publication() -> None:
    with Yarn("node1") as yarn:
        ids = [yarn.submit() for _ in range(module.AT_ONCE)]
        publisher = ModelPublisher(yarn.manager, mail_ns=0)
        assert publisher.publish_some().result(TIMEOUT_S) is None, "the first mail does not do it all"
        for app_id in ids:
            yarn.kill(app_id)
        between = [yarn.submit() for _ in range(module.AT_ONCE)]

        publication, _ = publish(publisher)
        following, _ = publish(publisher)

        assert list(publication.apps) == ids
        assert publication.metrics.apps_killed == module.AT_ONCE - publication.metrics.apps_pending, (
            "counted as published"
        )
        assert publication.metrics.apps_submitted == len(ids)
        assert set(following.apps) >= set(between)
        assert following.metrics.apps_submitted == 2 * len(ids)


@pytest.mark.parametrize("waiting", [10, 1000])
def test_what_waits_costs_a_publication_nothing_until_it_changes(monkeypatch: pytest.MonkeyPatch, waiting: int) -> None:
    """With thousands of applications that waited, the state in the answers became seconds old."""
    report, made = reports.application_report, []
    with Yarn("node1") as yarn:
        ids = [yarn.submit(user=f"user{number % 5}") for number in range(waiting)]
        publisher = ModelPublisher(yarn.manager, shares_every=0)
        publish(publisher)
        publish(publisher)
        monkeypatch.setattr(
            reports, "application_report", lambda context, app, *more: made.append(app) or report(context, app, *more)
        )
        yarn.kill(ids[-1])

        publication, _ = publish(publisher)

        assert publication.apps[ids[-1]].state == "KILLED"
        assert len(made) <= 3


def test_after_a_change_of_the_capacities_each_publication_reports_some_of_the_applications() -> None:
    """The one that reported them all kept everything else from being seen for as long as that took."""
    with Yarn("node1") as yarn:
        for _ in range(3 * module.SHARES_AT_ONCE):
            yarn.submit()
        publisher = ModelPublisher(yarn.manager, shares_every=0)
        model = ReadModel(yarn.manager)
        model.apply(publish(publisher)[0])
        yarn.register("node2")

        publications = [publish(publisher)[0] for _ in range(4)]
        for each in publications:
            model.apply(each)
        now = yarn.manager.context.call(lambda: built_afresh(yarn.manager.context))

        assert max(len(each.apps) for each in publications) <= module.SHARES_AT_ONCE + 50
        assert shown(model) == now


def test_a_report_that_fails_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each publication failed as long as one report did, so the model stayed as it was for ever."""
    report = reports.application_report

    with Yarn("node1") as yarn:
        bad, good = yarn.submit(), yarn.submit()
        publisher = ModelPublisher(yarn.manager)
        publish(publisher)
        monkeypatch.setattr(
            reports,
            "application_report",
            lambda context, app, *more: 1 / 0 if app.entity == bad else report(context, app, *more),
        )
        for app_id in (bad, good):
            yarn.kill(app_id)

        publication, _ = publish(publisher)
        whole, _ = publish(ModelPublisher(yarn.manager))

        assert not publication.is_whole
        assert set(publication.apps) == set(whole.apps) == {good}, "the reader keeps the last report of the other"
        assert set(publication.attempts) >= {bad, good}
        assert f"the last report of {bad}" in caplog.text


def test_queues_whose_report_fails_stay_as_they_were(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Yarn("node1") as yarn:
        publisher = ModelPublisher(yarn.manager)
        before, _ = publish(publisher)
        with monkeypatch.context() as patched:
            patched.setattr(yarn.context.scheduler._policy, "queue_info", lambda *_: 1 / 0)
            app_id = yarn.submit()
            publication, _ = publish(publisher)
        after, _ = publish(publisher)

        assert set(publication.apps) == {app_id}
        assert publication.queues == before.queues
        assert after.queues[0].applications == 1
        assert "the last report of the queues" in caplog.text


def test_a_publication_that_fails_is_followed_by_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with Yarn("node1") as yarn:
        app_id = yarn.submit()
        publisher = ModelPublisher(yarn.manager)
        publish(publisher)
        with monkeypatch.context() as patched:
            patched.setattr(marks, "Dirty", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                publish(publisher)

        publication, _ = publish(publisher)

        assert publication.is_whole
        assert publication.apps[app_id] is not None


def test_two_models_of_one_resource_manager_both_follow_it() -> None:
    """The second one's publisher took the changes away from the first one's, which then stood still."""

    async def look(yarn: Yarn) -> None:
        async with following(yarn.manager) as one, following(yarn.manager) as other:
            app_id = await asyncio.to_thread(yarn.submit)
            for model in (one, other):
                await model.published(TIMEOUT_S)
                assert model.apps[app_id].state == "ACCEPTED"
            await other.close()
            await asyncio.to_thread(yarn.kill, app_id)
            await one.published(TIMEOUT_S)
            assert one.apps[app_id].state == "KILLED"

    with Yarn("node1") as yarn:
        asyncio.run(look(yarn))


def test_after_the_close_nothing_is_collected() -> None:
    with Yarn("node1") as yarn:
        publisher = ModelPublisher(yarn.manager)
        publish(publisher)
        publisher.close()
        yarn.submit()

        publication, _ = publish(publisher)

        assert publication.is_whole


# -- while the handler thread hangs ------------------------------------------------------------------------------------


@with_model(refresh_ms=1)
async def test_while_the_handler_thread_hangs_the_model_stays_and_tells_its_age(yarn: Yarn, model: ReadModel) -> None:
    app_id = await asyncio.to_thread(yarn.submit)
    await model.published(TIMEOUT_S)
    with held_up(yarn.manager):
        with pytest.raises(TimeoutError):
            await model.published(0.05)
        assert model.apps[app_id].state == "ACCEPTED"
        assert model.age_ms() >= 50
        while (found := model.hang()) is None:
            await asyncio.sleep(0)
    await model.published(TIMEOUT_S)
    assert (found.dispatcher, found.kind, found.what) == (yarn.manager.name, "mail", "a mail that hangs")
    assert model.hang() is None


# -- restarts ----------------------------------------------------------------------------------------------------------


def stored_manager(path: Path) -> ResourceManager:
    settings = {"metrics": {"enabled": False}, "state_store": {"kind": "sqlite", "path": path}}
    return ResourceManager(ResourceManagerConfig.model_validate(settings))


def test_the_first_publication_after_a_restart_is_complete(tmp_path: Path) -> None:
    with stored_manager(tmp_path / "rm.db") as manager:
        ids = [manager.clients.submit_application(ApplicationSubmission("app", Resource(1, 1))) for _ in range(20)]
        timestamp = int(ids[0].split("_")[1])

    async def look(manager: ResourceManager) -> None:
        model = ReadModel(manager, 1)
        model.follow()
        assert (model.number, model.is_active()) == (0, False)
        await asyncio.to_thread(manager.start)
        async with asyncio.timeout(TIMEOUT_S):
            assert await model.changed(0) >= 1
        assert list(model.apps) == ids
        assert model.cluster_timestamp > timestamp
        await model.published(TIMEOUT_S)
        assert model.is_active()
        await model.close()

    manager = stored_manager(tmp_path / "rm.db")
    manager.init()
    try:
        asyncio.run(look(manager))
    finally:
        manager.stop()


@pytest.mark.parametrize("is_whole", [False, True], ids=["of what changed", "whole"])
def test_asks_that_the_scheduler_drops_after_the_last_transition_are_gone_from_the_next_publication(
    is_whole: bool,
) -> None:
    """A publication may come between the two."""
    looks: list[Future[Publication | None]] = []

    def look(event: RMAppEvent) -> None:
        if event.type is RMAppEventType.ATTEMPT_FINISHED:
            looks.append(publisher.publish_some())

    with Yarn("node1") as yarn:
        yarn.manager.dispatcher.register(RMAppEventType, look)
        master = yarn.submit_and_run()
        master.allocate(ask(1_000_000))
        publisher = ModelPublisher(yarn.manager, mail_ns=10**12)  # a publication is one mail, on a busy machine too
        model = ReadModel(yarn.manager)
        if not is_whole:
            model.apply(publish(publisher)[0])

        master.finish_and_exit()
        [look_between] = looks
        between = look_between.result(TIMEOUT_S)
        assert between is not None
        assert between.is_whole is is_whole
        model.apply(between)
        app = model.apps[master.app_id]
        assert (app.state, app.pending_containers) == ("FINISHED", 1)
        model.apply(publish(publisher)[0])

        assert model.apps[master.app_id].pending_containers == 0


# -- real time ---------------------------------------------------------------------------------------------------------


def test_with_a_scheduler_of_its_own_thread_the_model_comes_to_show_everything() -> None:
    async def look(manager: ResourceManager) -> None:
        async with following(manager, refresh_ms=1) as model, asyncio.timeout(TIMEOUT_S):
            submission = ApplicationSubmission("app", Resource(1, 1))
            ids = [await asyncio.to_thread(manager.clients.submit_application, submission) for _ in range(10)]
            for app_id in ids[::2]:
                await asyncio.to_thread(manager.clients.force_kill_application, app_id)
            while sum(app.state == "KILLED" for app in model.apps.values()) < 5:
                await model.changed(model.number)
            expected = None
            while shown(model) != expected:
                await model.published(TIMEOUT_S)
                expected = await asyncio.to_thread(manager.context.call, lambda: built_afresh(manager.context))

    settings = {"metrics": {"enabled": False}}
    with ResourceManager(ResourceManagerConfig.model_validate(settings)) as manager:
        asyncio.run(look(manager))


def test_what_the_scheduler_does_later_on_its_own_thread_is_shown_without_another_transition() -> None:
    """It drops the asks of an ended attempt when the machines have come to their end."""

    async def look(manager: ResourceManager) -> None:
        async with following(manager, refresh_ms=1) as model, asyncio.timeout(TIMEOUT_S):
            submission = ApplicationSubmission("app", Resource(1, 1))
            app_id = await asyncio.to_thread(manager.clients.submit_application, submission)
            while model.apps.get(app_id) is None or not model.apps[app_id].pending_containers:
                await model.changed(model.number)
            with held_up(manager, which=1):
                await asyncio.to_thread(manager.clients.force_kill_application, app_id)
                while model.apps[app_id].state != "KILLED":
                    await model.changed(model.number)
                assert model.apps[app_id].pending_containers == 1
            while model.apps[app_id].pending_containers:
                await model.changed(model.number)

    with ResourceManager(ResourceManagerConfig.model_validate({"metrics": {"enabled": False}})) as manager:
        asyncio.run(look(manager))
