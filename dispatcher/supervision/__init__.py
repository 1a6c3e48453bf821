"""How a process is supervised from outside: registered checks, a line on its state, systemd."""
