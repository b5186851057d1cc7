"""Keep the recent data of the nodes: the latest two tables of each, earlier ones for charts, and the jobs.

Earlier tables are kept packed as received, and compressed in blocks: rows of one table differ little from one sample to
the next, so a byte of `--memory` holds several bytes of rows. Each sender has a share of every bounded resource: a
sender beyond its share loses its own oldest samples.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.pacing import Shares
from colmet.common.live.latest_tables import LEAST_S, HostTables, LatestTables
from colmet.common.live.summary import DEVICE_TABLES, GONE_S, MAX_TEXT, TABLES, Heard
from colmet.common.schema import Batch, Rows, Schema
from colmet.common.tables import RUN

log = logging.getLogger(__name__)

BLOCK_TABLES = 16  # samples of one table of one host in a block
BLOCK_BYTES = 256 << 10
MAX_STRANDS = 1 << 17
MAX_HOSTS = 16384
MAX_JOBS = 100_000
FORGET = 1000  # jobs dropped at once, beyond MAX_JOBS
SPARE = 1 / 64  # share of the bytes freed at once
AGAIN_S = 3600.0  # pause between samples after which a job's number may denote another job
TIDY_S = 60.0
# Approximate overhead in memory, without rows.
STRAND_BYTES, TABLE_BYTES, SEALED_BYTES = 700, 220, 260
NS = 10**9
FACILITY = "facility_"  # prefix of tables of colmet-facility: without a node, some with user names
AGENT_TABLE = "agent_default"  # of the state of the nodes' spools
_USER_TABLE, _USER = "cgroup_default", "user"


class SealedBlock(NamedTuple):
    """Some samples of one table, compressed."""

    schema: Schema  # schema of all rows
    first_ns: int  # the earliest time
    last_ns: int  # the latest time
    length: int  # number of samples
    is_even: bool  # all samples have the same number of rows: each is kept as the difference from the one before
    packed: bytes  # times, counts of rows, and rows, compressed

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the block."""
        return len(self.packed) + SEALED_BYTES

    def samples(self) -> list[tuple[int, bytes]]:
        """Return the samples as (time in nanoseconds, packed rows)."""
        data = zlib.decompress(self.packed)
        head = 16 * self.length
        times, counts = np.frombuffer(data[:head], np.int64).reshape(2, -1).tolist()
        size = self.schema.row_bytes
        if self.is_even:
            parts = np.frombuffer(data, np.uint8, offset=head).reshape(self.length, -1)
            whole = np.bitwise_xor.accumulate(parts, axis=0)
            return [(at, row.tobytes()) for at, row in zip(times, whole)]
        found = []
        for at, count in zip(times, counts):
            found.append((at, data[head : head + count * size]))
            head += count * size
        return found


def seal(schema: Schema, samples: Sequence[tuple[int, bytes]]) -> SealedBlock:
    """Compress samples of one table, given as (time in nanoseconds, packed rows)."""
    times = [at for at, _ in samples]
    size = len(samples[0][1])
    is_even = all(len(rows) == size for _, rows in samples)
    data = b"".join([rows for _, rows in samples])
    if is_even:
        parts = np.frombuffer(data, np.uint8).reshape(len(samples), size)
        changed = parts.copy()
        changed[1:] ^= parts[:-1]
        data = changed.tobytes()
    counts = [len(rows) // schema.row_bytes for _, rows in samples]
    packed = zlib.compress(array("q", times).tobytes() + array("q", counts).tobytes() + data, 1)
    return SealedBlock(schema, min(times), max(times), len(samples), is_even, packed)


class _HostTable:
    """The samples of one table of one host, in order of arrival; they count to the share of the first one's sender."""

    __slots__ = ("open", "open_bytes", "schema", "sealed", "sender", "updated")

    def __init__(self, schema: Schema, sender: str) -> None:
        self.sender = sender
        self.schema = schema  # of the samples in `open`
        self.sealed: deque[SealedBlock] = deque()
        self.open: list[tuple[int, bytes]] = []
        self.open_bytes = 0
        self.updated = 0.0


class JobStay:
    """A job on one host, from the rows of this host alone."""

    __slots__ = ("is_disputed", "is_whole", "last", "run", "since", "user")

    def __init__(self, since: float, is_whole: bool) -> None:
        self.user = ""  # named by the rows; "" if no row names one
        self.is_disputed = False  # rows name different users: there are two jobs of this number
        self.is_whole = is_whole  # the node had sent data before, without rows of this number, or of another run of it
        self.run = 0  # its number, see `colmet.common.tables`; 0 while it is unknown
        # start of the rows, seconds since 1970: the time of the first row, or its time of arrival if that is more than
        # an hour later, as the sender's clock may be wrong
        self.since = since
        self.last = since  # time of the last row


class RecentJob:
    """A job in the cache."""

    __slots__ = ("first", "hosts", "is_disputed", "job", "last", "sender", "tables", "user")

    def __init__(self, job: int, now: float, sender: str = "") -> None:
        self.job = job
        self.sender = sender  # of its first row; the job counts to this sender's share
        self.user = ""  # named by its hosts; "" if none does, or they differ
        self.is_disputed = False  # hosts name different users: there are two jobs of this number
        self.first = self.last = now  # times of the first and the last sample received here, seconds since 1970
        self.hosts: dict[str, JobStay] = {}  # by name
        self.tables: frozenset[str] = frozenset()  # names of the tables with rows of the job


class JobSamples(NamedTuple):
    """Rows of one job, or of the node itself, in one table of one host."""

    host: str  # name of the host
    schema: Schema  # schema of the rows
    times: Any  # seconds since 1970, shape (n,), float64, ascending
    rows: Rows  # shape (n,)


class CacheView(NamedTuple):
    """The latest data of each node."""

    taken: float  # time of the view, by the monotonic clock
    hosts: list[tuple[str, HostTables]]  # the latest tables of each host, without stale ones
    silent: frozenset[str]  # hosts with stale jobs, as they have sent nothing for too long
    heard: dict[str, Heard]  # time of the last message of each node, including nodes without kept tables


@dataclass(eq=False)
class RecentCache:
    """A cache of recent rows. One thread adds batches, any thread reads."""

    max_bytes: int  # approximate memory of earlier tables
    max_age_s: float
    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    began: float = 0.0  # time of the start, seconds since 1970
    batches: int = 0  # received
    missed: int = 0  # messages dropped by the collector, from its notes

    def __post_init__(self) -> None:
        self._lock = threading.Lock()  # of the attributes of `clear`; a reader holds it while copying references
        self._evicted = self._over_share = self._left_out = self._forgotten = 0
        self.clear()

    def clear(self) -> None:
        """Drop all: what follows may lack some messages since the last one."""
        with self._lock:
            self.began = self.now()
            self._began = self.monotonic()
            self._latest = LatestTables((*TABLES, *DEVICE_TABLES, AGENT_TABLE), always=True, monotonic=self.monotonic)
            self._tidy_at = 0.0
            self._heard: dict[str, tuple[Heard, str]] = {}  # with its sender, by host
            self._hosts_of = Shares(MAX_HOSTS)
            self._jobs: dict[int, RecentJob] = {}
            self._jobs_of = Shares(MAX_JOBS)
            self._strands: dict[tuple[str, str], _HostTable] = {}
            self._strands_of = Shares(MAX_STRANDS)
            self._by_host: dict[str, set[str]] = {}
            self._order: dict[str, deque[tuple[float, _HostTable, SealedBlock]]] = {}  # all blocks, by sender
            self._sets: dict[frozenset[str], frozenset[str]] = {}
            self._bytes_of = Shares(self.max_bytes)

    def counters(self) -> dict[str, int]:
        """Return counters of kept and of dropped data."""
        return {
            "batches": self.batches,
            "bytes": self._bytes_of.total,
            "tables": len(self._strands),
            "jobs": len(self._jobs),
            "evicted": self._evicted,
            "over_share": self._over_share,
            "left_out": self._left_out + self._latest.left_out,
            "forgotten": self._forgotten,
            "missed": self.missed,
        }

    # -- input --

    def note(self, content: Mapping[str, Any]) -> None:
        """Read a note of the collector: messages that it has dropped since the last note, and nodes heard earlier."""
        left_out, heard = content.get("left_out"), content.get("heard")
        if type(left_out) is int:
            self.missed += left_out
        if isinstance(heard, dict):
            with self._lock:
                for host, times in heard.items():
                    if type(times) is list and list(map(type, times)) == [int, int] and host not in self._heard:
                        self._hear(host, Heard(*times), "")

    def take(self, batches: Sequence[Batch], sender: str = "") -> None:
        """Add batches of a sender; "" for an unknown sender."""
        now = self.monotonic()
        wall = self.now()
        with self._lock:
            self._latest.take([batch for batch in batches if not _is_of_facility(batch)], sender)
            for batch in batches:
                self.batches += 1
                self._take(batch, now, wall, sender)
            if self._bytes_of.total > self.max_bytes:
                self._make_room()
            if now >= self._tidy_at:
                self._tidy_at = now + TIDY_S
                self._tidy(now, wall)

    def _hear(self, host: str, heard: Heard, sender: str) -> None:
        """Record the last message of a host. Beyond the bound, drop the host silent for longest."""
        former = self._heard.pop(host, None)
        if former is None:
            if sender and self._hosts_of.room(sender) < 1:
                self._leave_out("hosts")
                return
            if len(self._heard) >= MAX_HOSTS:
                self._forget_host(next(iter(self._heard)))
            self._hosts_of.hold(sender, 1)
        self._heard[host] = heard, sender if former is None else former[1]

    def _forget_host(self, host: str) -> None:
        if host in self._heard:
            self._hosts_of.hold(self._heard.pop(host)[1], -1)

    def _take(self, batch: Batch, now: float, wall: float, sender: str) -> None:
        host = batch.host
        is_new = all(name.startswith(FACILITY) for name in self._by_host.get(host, ()))
        if _is_of_facility(batch):
            if is_new:  # the collector has listed it as a node, by mistake
                self._forget_host(host)
        else:
            self._hear(host, Heard(int(wall * NS), int(wall * NS) - batch.time_ns), sender)
        for job in batch.jobs or ():
            self._know(job, host, batch.time_ns / NS, wall, is_new, sender)
        for table in batch.tables:
            if not len(table):
                continue
            packed = table.packed
            schema = table.schema
            if schema.scope == "job":
                self._index(schema, packed, host, table.time_ns / NS, wall, is_new, sender)
            self._keep((host, schema.name), schema, table.time_ns, packed, now, sender)

    def _know(
        self, job: int, host: str, at: float, wall: float, is_new: bool, sender: str
    ) -> tuple[RecentJob, JobStay]:
        """Record a job on a host. `at` is the time by the clock of the host, `wall` by ours."""
        at = min(wall, at)
        known = former = self._jobs.get(job)
        if known is None and self._jobs_of.room(sender) < 1:
            self._forget(sender)
        if known is None or at - known.last > AGAIN_S:
            if known is not None:
                self._jobs_of.hold(known.sender, -1)
            known = self._jobs[job] = RecentJob(job, at, sender)
            self._jobs_of.hold(sender, 1)
        if at > known.last:
            known.last = at
        elif at < known.first:
            known.first = at
        begins = at if wall - at <= AGAIN_S else wall
        stay = known.hosts.get(host)
        if stay is None:
            was_here = former is not None and host in former.hosts
            stay = known.hosts[host] = JobStay(begins, not is_new and not was_here)
        elif at - stay.last > AGAIN_S:
            stay = known.hosts[host] = JobStay(begins, False)
            self._agree(known)
        stay.last = max(stay.last, at)
        stay.since = min(stay.since, begins)
        return known, stay

    @staticmethod
    def _agree(known: RecentJob) -> None:
        """Set the user of a job from the users named by its hosts."""
        users = {stay.user for stay in known.hosts.values() if stay.user}
        known.is_disputed = len(users) > 1 or any(stay.is_disputed for stay in known.hosts.values())
        known.user = users.pop() if len(users) == 1 and not known.is_disputed else ""

    def _index(
        self, schema: Schema, packed: bytes, host: str, at: float, wall: float, is_new: bool, sender: str
    ) -> None:
        """Record the jobs and users in a table."""
        rows = np.frombuffer(packed, schema.dtype)
        users: list[bytes] = []
        if schema.name == _USER_TABLE and _USER in schema.name_set and rows[_USER].dtype.kind == "S":
            users = rows[_USER].tolist()
        runs: list[int] = []
        if RUN in schema.name_set and rows[RUN].dtype.kind == "i":
            runs = rows[RUN].tolist()
        for n, job in enumerate(rows["job_id"].tolist()):
            if not job:
                continue
            known = self._jobs.get(job)
            stay = None if known is None else known.hosts.get(host)
            if known is None or stay is None or min(wall, at) - stay.last > AGAIN_S:
                known, stay = self._know(job, host, at, wall, is_new, sender)
            if runs and runs[n] > 0 and runs[n] != stay.run:
                if stay.run and min(wall, at) >= stay.last:  # the last row of the run before may have the same second
                    stay = known.hosts[host] = JobStay(int(stay.last) + 1, True)
                    self._agree(known)
                stay.run = stay.run or runs[n]
            if schema.name not in known.tables:
                tables = known.tables | {schema.name}
                known.tables = self._sets.setdefault(tables, tables)
            if users and users[n] and not stay.is_disputed:
                user = users[n][:MAX_TEXT].decode(errors="replace")
                if stay.user and stay.user != user:
                    stay.user, stay.is_disputed = "", True
                else:
                    stay.user = user
                if not known.is_disputed and (stay.is_disputed or known.user not in ("", user)):
                    known.user, known.is_disputed = "", True
                elif not known.is_disputed:
                    known.user = user

    def _leave_out(self, what: str) -> None:
        self._left_out += 1
        if powers_of_ten(self._left_out):
            log.warning("no room in the page's memory, dropped left_out=%d what=%s", self._left_out, what)

    def _keep(self, key: tuple[str, str], schema: Schema, time_ns: int, packed: bytes, now: float, sender: str) -> None:
        strand = self._strands.get(key)
        if strand is None:
            if self._strands_of.room(sender) < 1 or self._bytes_of.exceeds(sender, STRAND_BYTES):
                self._leave_out("tables for curves")
                return
            strand = self._strands[key] = _HostTable(schema, sender)
            self._strands_of.hold(sender, 1)
            self._by_host.setdefault(key[0], set()).add(key[1])
            self._bytes_of.hold(sender, STRAND_BYTES)
        if strand.schema is not schema:
            if strand.open and strand.schema != schema:
                self._seal(strand, now)
            strand.schema = schema
        strand.open.append((time_ns, packed))
        strand.open_bytes += len(packed)
        strand.updated = now
        self._bytes_of.hold(strand.sender, len(packed) + TABLE_BYTES)
        if len(strand.open) >= BLOCK_TABLES or strand.open_bytes >= BLOCK_BYTES:
            self._seal(strand, now)
        while self._bytes_of.exceeds(strand.sender):
            before = self._evicted
            if strand.sender not in self._order:
                if not strand.open:
                    return
                self._seal(strand, now)
            self._evict(strand.sender)
            self._over_share += self._evicted - before

    def _seal(self, strand: _HostTable, now: float) -> None:
        sealed = seal(strand.schema, strand.open)
        self._bytes_of.hold(strand.sender, sealed.size_bytes - strand.open_bytes - TABLE_BYTES * len(strand.open))
        strand.open, strand.open_bytes = [], 0
        strand.sealed.append(sealed)
        self._order.setdefault(strand.sender, deque()).append((now, strand, sealed))

    def _make_room(self) -> None:
        """Drop the oldest samples of all senders, and a few more, to avoid a call for each batch."""
        if not self._order:  # uncompressed samples alone exceed the bound
            for strand in sorted(self._strands.values(), key=lambda one: one.updated):
                if strand.open:
                    self._seal(strand, strand.updated)
        oldest = [(order[0][0], sender) for sender, order in self._order.items()]
        heapq.heapify(oldest)
        while oldest and self._bytes_of.total > self.max_bytes * (1 - SPARE):
            sender = heapq.heappop(oldest)[1]
            self._evict(sender)
            if sender in self._order:
                heapq.heappush(oldest, (self._order[sender][0][0], sender))

    def _evict(self, sender: str) -> None:
        """Drop the oldest samples of a sender."""
        order = self._order[sender]
        _, strand, sealed = order.popleft()
        if not order:
            del self._order[sender]
        if strand.sealed and strand.sealed[0] is sealed:  # else the strand was dropped earlier
            strand.sealed.popleft()
            self._bytes_of.hold(sender, -sealed.size_bytes)
            self._evicted += sealed.length

    def _tidy(self, now: float, wall: float) -> None:
        """Drop samples, tables and hosts beyond their max age."""
        for sender in list(self._order):
            while sender in self._order and self._order[sender][0][0] < now - self.max_age_s:
                self._evict(sender)
        for key in [key for key, strand in self._strands.items() if strand.updated < now - self.max_age_s]:
            strand = self._strands.pop(key)
            size = STRAND_BYTES + strand.open_bytes + TABLE_BYTES * len(strand.open)
            size += sum([sealed.size_bytes for sealed in strand.sealed])
            strand.sealed.clear()
            self._bytes_of.hold(strand.sender, -size)
            self._strands_of.hold(strand.sender, -1)
            self._by_host[key[0]].discard(key[1])
            if not self._by_host[key[0]]:
                del self._by_host[key[0]]
        gone = int((wall - GONE_S) * NS)
        for host in [host for host, (one, _) in self._heard.items() if one.seen_ns < gone]:
            self._forget_host(host)
        if len(self._sets) > MAX_STRANDS:
            self._sets.clear()

    def _forget(self, sender: str) -> None:
        """Drop jobs of a sender, the earliest ended first; of all senders if it has none."""
        of_sender = [known for known in self._jobs.values() if known.sender == sender]
        oldest = sorted(of_sender or self._jobs.values(), key=lambda known: known.last)[:FORGET]
        for known in oldest:
            del self._jobs[known.job]
            self._jobs_of.hold(known.sender, -1)
        self._forgotten += len(oldest)

    # -- for any thread --

    def kept_s(self) -> float:
        """Return the age of the oldest kept tables in seconds."""
        with self._lock:
            since = min([order[0][0] for order in self._order.values()], default=self._began)
            since = since if self._evicted else self._began
        return self.monotonic() - since

    def look(self) -> CacheView:
        """Return the latest tables of each node."""
        now = self.monotonic()
        with self._lock:
            hosts, heard = self._latest.hosts(), {host: one for host, (one, _) in self._heard.items()}
        fresh, silent = [], set()
        for host, kept in hosts:
            fresh.append((host, kept.fresh(now)))
            if now - kept.seen > max([LEAST_S, *[pair.stale_s for pair in kept.tables.values()]]):
                silent.add(host)
        return CacheView(now, fresh, frozenset(silent), heard)

    def job(self, job: int) -> RecentJob | None:
        """Return a job; None if it is not in the cache."""
        return self._jobs.get(job)

    def jobs(self) -> list[RecentJob]:
        """Return all jobs in the cache."""
        with self._lock:
            return list(self._jobs.values())

    def hosts_of(self, known: RecentJob) -> dict[str, JobStay]:
        """Return the hosts of a job, by name."""
        with self._lock:
            return dict(sorted(known.hosts.items()))

    def is_host(self, host: str) -> bool:
        """Return whether a host has sent anything."""
        return host in self._by_host or host in self._heard

    def tables(self, hosts: Iterable[str], names: Iterable[str] | None = None) -> dict[str, Schema]:
        """Return the latest schema of each named table of some hosts; of the nodes' own tables if `names` is None."""
        wanted = None if names is None else frozenset(names)
        found: dict[str, Schema] = {}
        with self._lock:
            for host in hosts:
                for name in self._by_host.get(host, ()):
                    schema = self._strands[host, name].schema
                    if (schema.scope == "node") if wanted is None else (name in wanted):
                        found.setdefault(name, schema)
        return dict(sorted(found.items()))

    def begins(self, host: str, table: str) -> float | None:
        """Return the start of the complete samples of a table of a host, seconds since 1970; None without samples."""
        with self._lock:
            strand = self._strands.get((host, table))
            if strand is None or not (strand.sealed or strand.open):
                return None
            return (strand.sealed[0].first_ns if strand.sealed else min([at for at, _ in strand.open])) / NS

    def read(
        self, job: int, table: str, hosts: Iterable[str], since: float = 0.0, until: float = float("inf")
    ) -> Iterator[JobSamples]:
        """Yield the rows of a job, 0 for the node itself, for each host and each schema.

        A generator, as whole rows may need far more memory than one column.
        """
        for host in hosts:
            with self._lock:
                strand = self._strands.get((host, table))
                if strand is None:
                    continue
                sealed, schema, opened = list(strand.sealed), strand.schema, list(strand.open)
            parts: dict[Schema, list[tuple[int, bytes]]] = {}
            for block in sealed:
                if block.last_ns / NS >= since and block.first_ns / NS <= until:
                    parts.setdefault(block.schema, []).extend(block.samples())
            parts.setdefault(schema, []).extend(opened)
            for one, samples in parts.items():
                picked = _picked(host, job, one, samples, since, until)
                if picked is not None:
                    yield picked


def _is_of_facility(batch: Batch) -> bool:
    """Return whether a batch is from colmet-facility: it has no data of its host."""
    return bool(batch.tables) and all(table.schema.name.startswith(FACILITY) for table in batch.tables)


def _picked(
    host: str, job: int, schema: Schema, samples: Sequence[tuple[int, bytes]], since: float, until: float
) -> JobSamples | None:
    """Return the rows of a job in an interval, sorted by time; None without rows."""
    wanted = [(at, packed) for at, packed in samples if since <= at / NS <= until]
    if not wanted:
        return None
    rows = np.frombuffer(b"".join([packed for _, packed in wanted]), schema.dtype)
    counts = [len(packed) // schema.row_bytes for _, packed in wanted]
    times = np.repeat(np.array([at / NS for at, _ in wanted]), counts)
    of_job = rows["job_id"] == job
    times, rows = times[of_job], rows[of_job]
    if not len(times):
        return None
    if (np.diff(times) < 0).any():  # late samples
        order = np.argsort(times, kind="stable")
        times, rows = times[order], rows[order]
    return JobSamples(host, schema, times, rows)
