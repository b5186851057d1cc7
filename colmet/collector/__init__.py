"""The daemon of the head node: receives, buffers, writes."""
