"""Outputs: one file and one line each."""

NAMES = {
    "stdout": "colmet.collector.backends.stdout:StdoutOutput",
}
