"""Parses logs of Hadoop's YARN and MapReduce daemons into records. Independent of any engine."""
