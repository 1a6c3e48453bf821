"""Whatever happens to a resource manager, and whenever publications are begun and go on: in the end, the model shows
what reports built afresh do."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemachines.resourcemanager import Resource
from statemachines.simulation.workload import ApplicationSpec, ContainerSpec

from ....kit import tries
from ..daemon.happenings import Submit, ToApplication, ToNode
from ..daemon.test_cluster_properties import FOR_APPLICATIONS, FOR_NODES, courses
from ..inner import ModelPublisher, Publication, ReadModel, application_of
from ..machines.course import HOSTS, SCHEDULERS, Course, Step
from .reference import built_afresh, shown

pytestmark = pytest.mark.long

TIMEOUT_S = 60.0


class Look:
    """A mail of the publication under way, or the first one of the next."""

    def __repr__(self) -> str:
        return "LOOK"

    def __call__(self, course: Course) -> None:
        raise AssertionError("a Watched puts its own publisher in my place")


LOOK = Look()


class Watched:
    """A course whose publications a model takes, a few reports to a mail."""

    def __init__(self, scheduler: str) -> None:
        self.course = Course(scheduler)
        self._publisher = ModelPublisher(self.course.manager, mail_ns=0, shares_every=0)
        self._mails: list[Future[Publication | None]] = []

    def take(self, steps: list[Step]) -> None:
        steps = [step._replace(happening=self._look) if step.happening is LOOK else step for step in steps]
        self.course.do(lambda: self.course.enter(steps))

    def _look(self, _: Course) -> None:
        self._mails.append(self._publisher.publish_some())

    def end_publication(self) -> None:
        """End the publication under way, if any, and make one more."""
        for _ in range(2):
            mail = self._publisher.publish_some()
            self._mails.append(mail)
            while mail.result(TIMEOUT_S) is None:
                mail = self._publisher.publish_some()
                self._mails.append(mail)

    def model(self) -> ReadModel:
        model = ReadModel(self.course.manager)
        for mail in self._mails:
            publication = mail.result(TIMEOUT_S)
            if publication is not None:
                model.apply(publication)
                check_counts(model)
        return model


def check_counts(model: ReadModel) -> None:
    """In each publication, the applications in the totals are those that it shows, and those that were forgotten."""
    apps, metrics = Counter(app.state for app in model.apps.values()), model.metrics
    nodes = Counter(node.state for node in model.nodes.values() if node.state != "NEW")
    failed = Counter(app.failure for app in model.apps.values() if app.failure is not None)
    groups = model.tallies.failures.groups(lambda app: True, 0)
    assert {state: count for state, count in model.tallies.states.items() if count} == apps
    assert model.tallies.places == Counter((app.queue, app.user, app.state) for app in model.apps.values())
    assert (sum(group.apps for group in groups), failed.total()) == (apps["FAILED"], apps["FAILED"])
    assert metrics.apps_running == apps["RUNNING"]
    assert metrics.apps_pending == sum(apps[state] for state in ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"))
    ended = metrics.apps_completed + metrics.apps_failed + metrics.apps_killed
    assert ended >= apps["FINISHED"] + apps["FAILED"] + apps["KILLED"]
    assert metrics.apps_submitted == metrics.apps_pending + metrics.apps_running + ended
    assert {state: count for state, count in metrics.nodes.items() if count} == nodes


def check(scheduler: str, steps: list[Step]) -> None:
    watched = Watched(scheduler)
    course = watched.course
    course.start()
    try:
        watched.take([Step(0, 0, LOOK), *steps])
        watched.end_publication()
        expected = course.do(lambda: built_afresh(course.context))
        model = watched.model()
    finally:
        course.stop()
    assert shown(model) == expected
    queues = [model.apps[application_of(attempt)].queue for attempt, found in model.containers.items() for _ in found]
    live = {queue: allocated - released for queue, (allocated, released) in model.run.by_queue.items()}
    assert {queue: count for queue, count in live.items() if count} == Counter(queues)
    starts = [(app.start_ms, int(id.rpartition("_")[2])) for id, app in model.apps.items()]
    assert starts == sorted(starts)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=tries(12), deadline=None)
@given(courses(st.just(LOOK), FOR_APPLICATIONS, st.just(LOOK), FOR_NODES))
def test_the_model_shows_what_reports_built_afresh_do(scheduler: str, steps: list[Step]) -> None:
    check(scheduler, steps)


SPEC = ApplicationSpec("any", 0, Resource(1, 1), (ContainerSpec(Resource(1, 1), 3_000),) * 3, queue="a")


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("events", [0, 3, 7, 20])
def test_a_course_with_each_kind_of_change(scheduler: str, events: int) -> None:
    happenings = [
        *[Submit(SPEC, keeps=keeps) for keeps in (True, False)],
        LOOK,
        ToApplication("fail the attempt", 0),
        LOOK,
        *[ToApplication(what, 1) for what in ("move to c", "raise the priority", "limit the lifetime")],
        LOOK,
        ToNode("report ill", HOSTS[0]),
        ToNode("decommission gracefully", HOSTS[-1]),
        LOOK,
        Submit(SPEC),
        ToApplication("kill", 2),
        LOOK,
        ToNode("register", HOSTS[0]),
    ]

    check(scheduler, [Step(200, events, happening) for happening in happenings])
