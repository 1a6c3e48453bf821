"""Asynchronous calls, after Flink's AsyncWaitOperator."""
