"""Options: the command line, configuration files, plug-ins, keys and secrets."""
