"""The submission of an application, and what its nodes need to launch its master."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from statemachines.resourcemanager.records.resource import Resource


class LocalResource(NamedTuple):
    """A file to copy for a container, after YARN's LocalResource."""

    resource: str
    """Its URL."""
    type: str = "FILE"
    """FILE, ARCHIVE or PATTERN."""
    visibility: str = "APPLICATION"
    """PUBLIC, PRIVATE (the user's) or APPLICATION."""
    size: int = 0
    """Size in bytes."""
    timestamp: int = 0
    """Time in Unix ms. The file must not have changed since."""
    pattern: str | None = None
    """For a PATTERN, the entries to unpack."""


class LogAggregationContext(NamedTuple):
    """Which logs the nodes collect, by regular expressions, after YARN's class of that name."""

    log_include_pattern: str | None = None
    log_exclude_pattern: str | None = None
    rolled_log_include_pattern: str | None = None
    rolled_log_exclude_pattern: str | None = None
    log_aggregation_policy_class_name: str | None = None
    log_aggregation_policy_parameters: str | None = None


class Credentials(NamedTuple):
    """Secrets of an application, by name, as texts in base64. No report, log or `repr` shows them."""

    tokens: Mapping[str, str] = {}
    secrets: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"<Credentials of {len(self.tokens)} tokens and {len(self.secrets)} secrets>"


class LaunchContext(NamedTuple):
    """How a node launches an application's master, after YARN's ContainerLaunchContext.

    Don't change the mappings: reports share them between threads. `repr` leaves out all values, since some are secrets.
    """

    commands: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    local_resources: Mapping[str, LocalResource] = {}
    """Files by their path in the container's folder."""
    service_data: Mapping[str, str] = {}
    """Data for the node's auxiliary services, by name, in base64, often secret. Reports have only the names."""
    acls: Mapping[str, str] = {}
    """Access control lists by VIEW_APP and MODIFY_APP: `user1,user2 group1,group2`, or `*`."""
    credentials: Credentials | None = None
    """None in reports, and once the application has ended."""
    log_context: LogAggregationContext | None = None

    def __repr__(self) -> str:
        return (
            f"<LaunchContext of {len(self.commands)} commands, environment {sorted(self.environment)}, resources "
            f"{sorted(self.local_resources)}>"
        )

    def without_secrets(self) -> LaunchContext:
        """Return a copy for reports, without credentials and with only the names of `service_data`."""
        if self.credentials is None and not any(self.service_data.values()):
            return self
        return self._replace(credentials=None, service_data=dict.fromkeys(self.service_data, ""))

    def copied(self) -> LaunchContext:
        """Return a copy with separate mappings, since the given ones can still change."""
        credentials = self.credentials
        if credentials is not None:
            credentials = Credentials(dict(credentials.tokens), dict(credentials.secrets))
        return self._replace(
            commands=tuple(self.commands),
            environment=dict(self.environment),
            local_resources=dict(self.local_resources),
            service_data=dict(self.service_data),
            acls=dict(self.acls),
            credentials=credentials,
        )


class ApplicationSubmission(NamedTuple):
    """A client's submission, after YARN's ApplicationSubmissionContext."""

    name: str
    am_resource: Resource
    user: str = "default"
    queue: str = "default"
    am_host: str | None = None
    """Preferred node of the master, which accepts any other."""
    gpu_models: frozenset[str] = frozenset()
    """GPU models accepted by the master, or empty for any."""
    max_attempts: int | None = None
    """Maximum attempts. None, or less than 1, is the configured maximum."""
    priority: int = 0
    """Within a queue, a greater one is served first."""
    application_id: str | None = None
    """Id from `get_new_application`, so that you can retry, or None for a new id."""
    lifetime_s: int | None = None
    """Seconds after its submission until it's killed. By default, the queue's."""
    attempt_failures_validity_interval_ms: int | None = None
    """Older failures don't count towards `max_attempts`. None counts all."""
    keep_containers_across_attempts: bool = False
    """Whether the next attempt takes over the running containers of a failed one."""
    unmanaged_am: bool = False
    """Whether its master runs outside the cluster and registers by itself."""
    node_label: str | None = None
    """Default partition of its requests, and of the master without a label. None is the queue's default."""
    application_type: str = "YARN"
    tags: tuple[str, ...] = ()
    am_node_label: str | None = None
    """Partition of the master. By default, `node_label`."""
    launch: LaunchContext | None = None
    """How nodes launch the master. None, or the simulation, launches nothing."""

    @property
    def master_label(self) -> str | None:
        """The partition of the master, or None for the queue's default."""
        return self.node_label if self.am_node_label is None else self.am_node_label

    @property
    def labels(self) -> tuple[str | None, str | None]:
        """The partitions of its requests and of its master, which the queue must be allowed to use."""
        return self.node_label, self.master_label

    def without_secrets(self) -> ApplicationSubmission:
        """Return a copy for an ended application, which launches nothing more."""
        launch = self.launch
        public = None if launch is None else launch.without_secrets()
        return self if public is launch else self._replace(launch=public)

    def acl(self, access: str) -> str | None:
        """Return the access control list for VIEW_APP or MODIFY_APP, or None if it's not given."""
        return None if self.launch is None else self.launch.acls.get(access)
