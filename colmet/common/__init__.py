"""Definitions shared by both daemons: data types, wire formats, transport, shared options."""
