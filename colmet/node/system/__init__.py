"""The machine: files under a root, commands with a deadline, C libraries, state files, privileges, placement."""
