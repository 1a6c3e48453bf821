"""The keys of queues that can be changed while the resource manager runs."""

from __future__ import annotations

from typing import Final

from statemachines.resourcemanager.records.config import PartitionCapacityConfig, QueueConfig

LABELS: Final = "accessible_node_labels"
"""`accessible_node_labels.LABEL.capacity` and `.maximum_capacity` are also keys."""
KEYS: Final = tuple(name for name in QueueConfig.model_fields if name not in ("name", "queues", LABELS))
ROOT_KEYS: Final = (
    "acl_submit_applications",
    "acl_administer_queue",
    "maximum_applications",
    "maximum_am_resource_percent",
)
"""Keys of the root, which are the scheduler's."""
SHARES: Final = tuple(PartitionCapacityConfig.model_fields)


def label_and_share(key: str) -> tuple[str, str] | None:
    """The two in `accessible_node_labels.LABEL.capacity` or `.maximum_capacity`; None for any other key."""
    first, _, rest = key.partition(".")
    label, _, share = rest.rpartition(".")
    return (label, share) if first == LABELS and label and share in SHARES else None
