"""Hadoop's releases, and the arcs by which their tables differ from the table of Hadoop 3, which the machines have."""

from statemachines.releases.differences import ANY, CURRENT, EARLY, RELEASES, Arc, differences, of_release

__all__ = ["ANY", "CURRENT", "EARLY", "RELEASES", "Arc", "differences", "of_release"]
