"""Shared by tests: Bed, GB, NS, many."""

from __future__ import annotations

from colmet.common.daemon.daemon_health import DaemonIdentity
from colmet.common.daemon.startup import load
from colmet.common.live.latest_tables import LatestTables
from colmet.common.live.summary import TABLES, Top
from colmet.common.schema import Batch, Table
from colmet.common.wire.control import decode_answer, encode
from colmet.node.backends import NAMES

SCHEMAS = {schema.name: schema for cls in load(NAMES) for schema in (cls.schema, *cls.others)}


NS = 10**9


GB = 10**9


def table(name, at, rows, schema=None):
    """Rows of a declared table: job -> values."""
    schema = schema or SCHEMAS[name]
    packed = schema.empty_rows(len(rows))
    packed["job_id"] = list(rows)
    for n, values in enumerate(rows.values()):
        for key, value in values.items():
            packed[key][n] = value
    return Table(schema, int(at * NS), packed.tobytes())


class Bed:
    """A watch that somebody looks at, and what answers from it."""

    def __init__(self, heard=None):
        self.now = 1000.0
        self.heard = heard
        self.latest = LatestTables(TABLES, monotonic=lambda: self.now)
        heard_now = None if heard is None else lambda: self.heard
        now_ns = lambda: int((self.now + 500) * NS)  # noqa: E731

        def names(user):
            return {"995": "alice"}.get(user, user)

        self.top = Top(DaemonIdentity("collector"), self.latest, heard_now, now_ns, lambda: self.now, names)
        self.latest.look()

    def take(self, host, at, cgroup=(), jobs="all", **tables):
        named = {"cgroup_default": cgroup, **{f"{name}_default": rows for name, rows in tables.items()}}
        ids = {job for rows in named.values() for job in rows} - {0}
        made = tuple(table(name, at, rows) for name, rows in named.items() if rows)
        self.latest.take([Batch(host, 1, 1, int(at * NS), tuple(sorted(ids)) if jobs == "all" else jobs, made)])

    def ask(self, **request):
        answer = self.top.answer(request)
        assert decode_answer(encode(answer)) == answer
        return answer

    def rows(self, **request):
        return self.ask(**request)["rows"]


def many(bed, count=30):
    users = [b"alice", b"bob", b"carol"]
    for at in (10, 20):
        for host in range(3):
            rows = {
                100 + n: {"user": users[n % 3], "cpu_usage": (n % 7) * at * NS, "memory_current": n}
                for n in range(count)
                if n % 3 == host
            }
            bed.take(f"node-{host}", at, rows)
