"""YARN's exit statuses of containers."""

from __future__ import annotations

EXIT_SUCCESS = 0
EXIT_ABORTED = -100
"""YARN's status of a container that the resource manager ended before its time."""
EXIT_DISKS_FAILED = -101
"""YARN's status of a container whose node has lost its disks."""
EXIT_PREEMPTED = -102
"""YARN's status of a container whose room another queue was entitled to."""
EXIT_KILLED_BY_RESOURCEMANAGER = -106
"""YARN's status of a container that was stopped on its node because the resource manager said so."""
EXIT_KILLED_AFTER_APP_COMPLETION = -107
"""YARN's status of a container that was stopped because its application had ended."""
