"""The configuration file of the node."""

from __future__ import annotations

import math

from colmet.common.config.configuration import parse
from colmet.common.daemon import startup
from colmet.common.errors import ConfigError
from colmet.node import main
from colmet.node.backends import NAMES

PARSER = main.build_parser(startup.load(NAMES))
KNOWN = vars(PARSER.parse_args([])).keys()
SEEDS = [
    b'sample-period = 5\nverbose = 1\ndisable-cgroup = true\ncpuset_rootpath = ["/a", "/b"]\n',
    b"# x\n'nice' = 0x5\nregex_job_id = [\n  \"_(\\\\d+)$\",\n]\nwire = 'v1'\nperfhw-list = [\"r1a8:2:-1\"]\n",
    b'zeromq-uri = """\nnice = 5\n"""\nnice = 99\n',
    b"[node]\nsample.period = 1e3\n",
    b"pid = [1, 2.0, true, 2026-01-01T00:00:00Z]\n",
]


def one(data: bytes) -> None:
    """Values of options that there are, or one line that says what is wrong."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    try:
        values = parse(text, "node.toml", PARSER)
    except ConfigError as err:
        assert str(err).startswith("node.toml") and str(err).isprintable()  # noqa: PT017
        return
    assert values.keys() <= KNOWN
    assert math.isfinite(values.get("sample_period", 1.0))
    assert parse(text, "node.toml", PARSER) == values
