"""The body of POST /apps as a submission."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.records.submission import (
    ApplicationSubmission,
    Credentials,
    LaunchContext,
    LocalResource,
    LogAggregationContext,
)
from statemachines.resourcemanager.web.rest.rest_endpoints import MOST_INT
from statemachines.resourcemanager.web.rest.writing.bodies import MOST_LONG, Fields, bad

_TYPES: Final = ("FILE", "ARCHIVE", "PATTERN")
_VISIBILITIES: Final = ("APPLICATION", "PRIVATE", "PUBLIC")
_ACLS: Final = ("VIEW_APP", "MODIFY_APP")
_LONGEST_NAME: Final = 1000
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_\-\s]*={0,2}\s*", re.ASCII)
"""Either alphabet: Hadoop encodes tokens for addresses, and other secrets with the standard one."""


def submission_of(body: Fields, application_id: str, user: str) -> ApplicationSubmission:
    """The submission of this application by this user.

    Raises:
        Refusal: 400, which names the key.
    """
    validity_ms = body.number("attempt-failures-validity-interval", -1, -1, MOST_LONG)
    attempts = body.number("max-app-attempts", 0, -1, MOST_INT)
    return ApplicationSubmission(
        name=_name(body, "application-name", "N/A"),
        am_resource=_resource(body),
        user=user,
        queue=_name(body, "queue", "default") or "default",
        max_attempts=attempts if attempts > 0 else None,
        priority=body.number("priority", 0, -MOST_INT, MOST_INT),
        application_id=application_id,
        attempt_failures_validity_interval_ms=validity_ms if validity_ms > 0 else None,
        keep_containers_across_attempts=body.flag("keep-containers-across-application-attempts"),
        unmanaged_am=body.flag("unmanaged-AM"),
        node_label=_label(body, "app-node-label-expression"),
        am_node_label=_label(body, "am-container-node-label-expression"),
        application_type=_name(body, "application-type", "YARN"),
        tags=body.texts("application-tags", "tag"),
        launch=_launch(body),
    )


def resource_of(fields: Fields) -> Resource:
    """`{"memory": MB, "vCores": n}`; one core if only memory is given, as Hadoop's schedulers round it up."""
    memory_mb = fields.number("memory", None, 0, MOST_LONG)
    return Resource(memory_mb, fields.number("vCores", 1, 0, MOST_INT) * 1000)


def _resource(body: Fields) -> Resource:
    if not body.has("resource"):
        bad("resource", 'is missing; expected {"memory": MB, "vCores": number} of the application\'s master')
    return resource_of(body.fields("resource"))


def _name(body: Fields, key: str, default: str) -> str:
    name = body.text(key, default)
    if len(name) > _LONGEST_NAME:
        bad(key, f"has {len(name):,} characters; at most {_LONGEST_NAME:,} are possible")
    return name


def _label(body: Fields, key: str) -> str | None:
    """Hadoop's clients send an empty text where they mean the queue's default."""
    return _name(body, key, "").strip() or None


def _launch(body: Fields) -> LaunchContext:
    spec = body.fields("am-container-spec")
    acls = spec.text_map("application-acls")
    for name in acls:
        if name not in _ACLS:
            bad(spec.where("application-acls"), f"has the key {name!r:.100}; expected {' or '.join(_ACLS)}")
    return LaunchContext(
        commands=spec.texts("commands", "command"),
        environment=_environment(spec),
        local_resources={path: _local_resource(value, where) for path, value, where in spec.entries("local-resources")},
        service_data=_base64_map(spec, "service-data"),
        acls=acls,
        credentials=_credentials(spec),
        log_context=_log_context(body),
    )


def _environment(spec: Fields) -> Mapping[str, str]:
    found = spec.text_map("environment")
    for name in found:
        if not name or "=" in name:
            bad(spec.where("environment"), f"{name!r:.100} is not the name of a variable")
    return found


def _local_resource(value: Any, where: str) -> LocalResource:
    if not isinstance(value, dict):
        bad(where, "expected an object with resource, type, visibility, size and timestamp")
    fields = Fields(value, where)
    return LocalResource(
        resource=fields.text("resource"),
        type=fields.choice("type", "FILE", _TYPES),
        visibility=fields.choice("visibility", "APPLICATION", _VISIBILITIES),
        size=fields.number("size", 0, -1, MOST_LONG),
        timestamp=fields.number("timestamp", 0, -1, MOST_LONG),
        pattern=fields.optional_text("pattern"),
    )


def _credentials(spec: Fields) -> Credentials | None:
    fields = spec.fields("credentials")
    found = Credentials(_base64_map(fields, "tokens"), _base64_map(fields, "secrets"))
    return found if found.tokens or found.secrets else None


def _base64_map(fields: Fields, key: str) -> dict[str, str]:
    found = fields.text_map(key)
    for name, value in found.items():
        if not _BASE64.fullmatch(value):  # the message must not show the value: it may be a secret
            bad(fields.where(key), f"the value of {name!r:.100} is not base64")
    return found


def _log_context(body: Fields) -> LogAggregationContext | None:
    key = "log-aggregation-context"
    if not body.has(key):
        return None
    fields = body.fields(key)
    return LogAggregationContext(
        log_include_pattern=fields.optional_text("log-include-pattern"),
        log_exclude_pattern=fields.optional_text("log-exclude-pattern"),
        rolled_log_include_pattern=fields.optional_text("rolled-log-include-pattern"),
        rolled_log_exclude_pattern=fields.optional_text("rolled-log-exclude-pattern"),
        log_aggregation_policy_class_name=fields.optional_text("log-aggregation-policy-class-name"),
        log_aggregation_policy_parameters=fields.optional_text("log-aggregation-policy-parameters"),
    )
