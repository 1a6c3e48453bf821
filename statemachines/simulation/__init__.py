"""A resource manager without a cluster: simulated nodes and masters, virtual time, recorded workloads."""
