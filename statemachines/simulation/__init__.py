"""Simulated nodes and masters for a resource manager, and replays of recorded workloads in virtual time."""
