"""Compiled and pure builds: which one is loaded, and what sources tell the compiler."""
