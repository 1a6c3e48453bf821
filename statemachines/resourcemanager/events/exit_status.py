"""YARN's exit statuses of containers."""

from __future__ import annotations

EXIT_SUCCESS = 0
EXIT_ABORTED = -100
"""The resource manager ended the container."""
EXIT_DISKS_FAILED = -101
"""The node lost its disks."""
EXIT_PREEMPTED = -102
"""The container was preempted for another queue."""
EXIT_KILLED_BY_RESOURCEMANAGER = -106
"""The node stopped the container on the resource manager's order."""
EXIT_KILLED_AFTER_APP_COMPLETION = -107
"""The node stopped the container because its application had ended."""
