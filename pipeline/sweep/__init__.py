"""What-if sweeps: one workload through the resource manager under many settings. Needs no Spark."""
