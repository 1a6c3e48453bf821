"""Supervision of the process from outside: health and its checks, signals, systemd."""
