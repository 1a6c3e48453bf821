"""The resource manager's state store: applications and attempts, stored before their state is acknowledged."""
