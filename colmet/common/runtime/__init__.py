"""Infrastructure of every Colmet program: options, configuration, reload, logs, systemd, the control socket, keys."""
