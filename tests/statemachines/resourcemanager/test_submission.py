"""The launch context of a submission: what is kept of it, for how long, and who sees it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from statemachines.resourcemanager import (
    ApplicationSubmission,
    Credentials,
    LaunchContext,
    LocalResource,
    LogAggregationContext,
    Resource,
    ResourceManager,
    ResourceManagerConfig,
)

from .builders import Workshop, send
from .inner import ClientRMService, encode
from .services.desk import TIMEOUT_S

LAUNCH = LaunchContext(
    commands=("python job.py",),
    environment={"PASSWORD": "SECRET-1"},
    local_resources={"job.py": LocalResource("hdfs://nn/job.py", "FILE", "PRIVATE", 12, 34)},
    service_data={"mapreduce_shuffle": "SECRET-2"},
    acls={"VIEW_APP": "bob", "MODIFY_APP": " admins"},
    credentials=Credentials({"hdfs": "SECRET-3"}, {"key": "SECRET-4"}),
    log_context=LogAggregationContext(log_include_pattern=".*"),
)
PUBLIC = LAUNCH._replace(credentials=None, service_data={"mapreduce_shuffle": ""})


def submission(**more: Any) -> ApplicationSubmission:
    return ApplicationSubmission("job", Resource(1024, 1000), "alice", launch=LAUNCH, **more)


def test_launch_context_survives_a_restart_and_reports_show_it_without_its_secrets(tmp_path: Path) -> None:
    config = ResourceManagerConfig.model_validate(
        {
            "metrics": {"enabled": False},
            "state_store": {"kind": "sqlite", "path": tmp_path / "state.db"},
        }
    )
    with ResourceManager(config) as manager:
        app_id = manager.clients.submit_application(submission(am_node_label="gpu"), TIMEOUT_S)
        first = manager.clients.get_application_report(app_id)
    with ResourceManager(config) as manager:
        second = manager.clients.get_application_report(app_id)
        kept = manager.context.call(lambda: manager.context.apps[app_id].submission)

    assert (first.launch, first.am_node_label) == (second.launch, second.am_node_label) == (PUBLIC, "gpu")
    assert (kept.launch, kept.am_node_label) == (LAUNCH, "gpu")
    assert "SECRET-2" not in str(first)
    assert "SECRET-3" not in str(first)


def test_texts_of_a_submission_show_no_values() -> None:
    texts = f"{submission()} {submission()!r} {LAUNCH} {LAUNCH.credentials!r}"

    assert "SECRET" not in texts
    assert "PASSWORD" in texts


@pytest.mark.parametrize("events", [["ATTEMPT_UNREGISTERED"], ["ATTEMPT_FAILED"], ["KILL", "ATTEMPT_KILLED"]])
def test_secrets_are_forgotten_and_no_longer_stored_once_the_application_has_ended(
    workshop: Workshop, events: list[str]
) -> None:
    app = workshop.app("RUNNING", launch=LAUNCH, max_attempts=1)
    before = app.record()
    for event in events:
        send(app, event)
    ending = app.record()
    send(app, "APP_UPDATE_SAVED")
    if app.state.name == "FINISHING":
        send(app, "ATTEMPT_FINISHED")

    assert "SECRET-3" in encode(before)
    assert ending.submission.launch == app.submission.launch == PUBLIC


def test_launch_context_is_the_resource_manager_s_own(workshop: Workshop) -> None:
    """A client that changed its mapping afterwards changed the application."""
    environment = {"A": "1"}
    given = submission()._replace(launch=LAUNCH._replace(environment=environment))
    app_id = ClientRMService(workshop.context).submit_application(given)
    environment["A"] = "2"

    kept = workshop.context.apps[app_id].submission.launch
    assert kept is not None
    assert kept.environment == {"A": "1"}


def test_no_log_shows_secrets(caplog: pytest.LogCaptureFixture) -> None:
    config = ResourceManagerConfig.model_validate({"metrics": {"enabled": False}})
    with caplog.at_level(logging.DEBUG), ResourceManager(config) as manager:
        app_id = manager.clients.submit_application(submission(), TIMEOUT_S)
        manager.clients.force_kill_application(app_id)

    assert "SECRET" not in caplog.text


@pytest.mark.parametrize(
    ("label", "own", "master"), [(None, None, None), ("gpu", None, "gpu"), ("gpu", "", ""), (None, "gpu", "gpu")]
)
def test_master_has_its_own_partition_or_its_application_s(
    label: str | None, own: str | None, master: str | None
) -> None:
    assert submission(node_label=label, am_node_label=own).master_label == master
