"""The machine: files under a root, commands with a deadline, calls and processes that may hang."""
