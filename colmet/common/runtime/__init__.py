"""What every Colmet program runs on: options, configuration, reload, logs, systemd, the control socket, keys."""
