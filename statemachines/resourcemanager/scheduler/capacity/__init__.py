"""The capacity scheduler, after YARN's CapacityScheduler."""
