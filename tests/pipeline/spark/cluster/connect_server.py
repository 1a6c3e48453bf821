"""Serves Spark Connect from a driver on a master until its input ends. Arguments: the master, a free port."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

SETTINGS = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.task.maxFailures": "1",
}

if __name__ == "__main__":
    builder = SparkSession.builder.master(sys.argv[1])
    for key, value in {**SETTINGS, "spark.connect.grpc.binding.port": sys.argv[2]}.items():
        builder = builder.config(key, value)
    with builder.getOrCreate():
        print("serving", flush=True)
        sys.stdin.read()
