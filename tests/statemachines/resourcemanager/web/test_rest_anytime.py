"""Answers before the start and after the stop, and while everything changes."""

from __future__ import annotations

import threading

import pytest

from ....kit import in_threads
from ..daemon.yarn_cluster import Yarn
from .served import Served
from .test_rest_answers import check_sums

pytestmark = pytest.mark.long


def test_before_the_start_and_after_the_stop_only_info_answers() -> None:
    yarn = Yarn("n1")
    with Served(yarn.manager) as served:
        served.publish()
        yarn.manager.stop()

        answers = {path: served.ask(path).status_code for path in ("/info", "/apps", "/metrics", "/nodes/n1:45454")}

        submission = served.ask("/apps/new-application", "POST")

        assert (submission.status_code, submission.headers["retry-after"]) == (503, "1")
        assert answers == {"/info": 200, "/apps": 503, "/metrics": 503, "/nodes/n1:45454": 503}
        assert served.ask("/info").json()["clusterInfo"]["state"] == "STOPPED"
        assert served.ask("/apps").headers["retry-after"] == "1"


def test_applications_that_come_and_go_while_the_list_and_the_sums_are_read() -> None:
    with Yarn("n1", max_completed_applications=5) as yarn, Served(yarn.manager, refresh_ms=1) as served:
        ends = threading.Event()

        def read() -> None:
            while not ends.is_set():
                check_sums(served.ask("/metrics").json()["clusterMetrics"])
                ids = [each["id"] for each in served.ask("/apps").json()["apps"]["app"]]
                assert ids == sorted(set(ids))

        def come_and_go() -> None:
            try:
                for number in range(100):
                    yarn.kill(yarn.submit(f"app-{number}", am_mb=99_999))
            finally:
                ends.set()

        in_threads(read, come_and_go)
        shown = [each["name"] for each in served.get("/apps")["apps"]["app"]]

    assert shown == [f"app-{number}" for number in range(95, 100)]
