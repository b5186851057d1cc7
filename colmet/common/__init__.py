"""What both daemons agree on: data types, wire formats, transport, shared options."""
