"""Schedulers: which ask gets a container on which node."""
