"""Supervision of the process from outside: registered checks, its status in one line, systemd."""
