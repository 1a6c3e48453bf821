"""Stream tasks and their checkpoints, after Flink's StreamTask."""
