"""Notices on jobs: rules over the job archive, and their delivery by mail, webhook or a command."""
