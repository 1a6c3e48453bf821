"""Hadoop's releases, and the arcs by which their tables differ from the table of Hadoop 3, which the machines have."""
