"""The record log between reception and outputs: a message is acknowledged when it is on disk."""
