"""What a daemon is: its start, signals, log, control socket, health and metrics."""
