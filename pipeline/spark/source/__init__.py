"""The event journal, and logs of Hadoop's daemons, as Spark tables."""
