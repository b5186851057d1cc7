"""Decoding of messages to batches: limited, without duplicates, under the name of their agent."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from colmet.collector.ingest.host_holder import HostHolder
from colmet.collector.ingest.new_tables import NewTables
from colmet.collector.ingest.rate_limit import RateLimit, SenderUse
from colmet.collector.ingest.sender import COUNTS, MAX_EPOCHS, MAX_RUNS, Sender
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.errors import OverBudget, Undescribed, WireError
from colmet.common.live.summary import Heard
from colmet.common.schema import Batch
from colmet.common.wire import Decoded, Decoder, v1
from colmet.common.wire.link import Hello

log = logging.getLogger(__name__)

# Hosts and addresses counted separately. Any client can make names up: senders beyond this limit share one entry.
MAX_SENDERS = 16384
OTHERS = "(others)"
# Senders without rows and without a Hello are forgotten first, then those silent for longest.
OLD_S = 3600.0
ROOM_S = 10.0  # between two removals of senders, an eighth each
# Over all senders. Beyond it the limits of each are FEW: (starts, ranges).
MAX_ALL_RUNS = 1 << 18
FEW = (4, 16)
REMEDY = "give each machine a host name of its own, or stop the second colmet-node"
_LOGGED_AS = {"rejects": "refused", "skipped": "skipped_values", "left_out": "left_out_rows"}
LOOK_EVERY = 10_000  # messages, and starts named in Hellos, between two checks of the number of ranges


# Of the refusals of names.
MAX_NAMES = 100
LASTS_S = 600.0  # a refusal is reported, unless its node is heard before
MAX_REASON = 200  # characters


class Refusal(NamedTuple):
    """The latest refusal of a name."""

    time_ns: int
    reason: str
    times: int  # refusals of the name


class Refusals:
    """Keeps the latest refusal of each name: of a host whose key is another's, else of an address.

    For the main thread.
    """

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns = now_ns
        self._latest: dict[str, Refusal] = {}

    def add(self, name: str, reason: str) -> None:
        """Add a refusal; of too many names, the one refused longest ago is forgotten."""
        before = self._latest.pop(name, None)
        while len(self._latest) >= MAX_NAMES:
            del self._latest[next(iter(self._latest))]
        text = "".join([c if c.isprintable() else "?" for c in reason[:MAX_REASON]])
        self._latest[name] = Refusal(self._now_ns(), text, 1 if before is None else before.times + 1)

    def current(self, heard_ns: Mapping[str, int]) -> dict[str, Refusal]:
        """Return the recent refusals of names that were not heard after them, the latest first.

        Args:
            heard_ns: when the last accepted batch of each host came.
        """
        since_ns = self._now_ns() - int(LASTS_S * 1e9)
        recent = [(name, refusal) for name, refusal in self._latest.items() if refusal.time_ns > since_ns]
        return {name: refusal for name, refusal in reversed(recent) if heard_ns.get(name, 0) <= refusal.time_ns}


class Taken(NamedTuple):
    """The batches of some messages."""

    fresh: list[Batch]  # new ones
    again: list[Batch]  # duplicates
    kept: list[tuple[bytes, list[Batch], str]]  # for the outputs: each message with its new batches and its sender
    undescribed: set[tuple[str, int]]  # hosts and starts with messages that lack a description


class Receiver:
    """Decoder of messages, with counts by sender.

    Of several machines with one host name, one is received (`HostHolder`). The batches of the others are refused: they
    are not acknowledged, so they stay there.

    Args:
        new_tables: the budgets of new tables.

    Attributes:
        senders: by host name, or by address for messages without a host; at most `MAX_SENDERS` and one for all
            others.
        again: the duplicate batches of the latest message.
        messages: the latest message for the outputs: each message with its decoded batches.
        refusals: the latest refused messages, by host or address.
        forgotten: senders forgotten for lack of room; their counts are added to the others.
        undescribed: host and start of the latest message, if it lacks a description that has not come.
    """

    def __init__(self, rates: RateLimit | None = None, new_tables: NewTables | None = None) -> None:
        self._rates = rates or RateLimit()
        self._new_tables = new_tables or NewTables()
        self._decoder = Decoder()
        self.senders: dict[str, Sender] = {}
        self.dialects: dict[str, int] = {}
        self.rejects = 0
        self.refusals = Refusals()
        self.undescribed: set[tuple[str, int]] = set()
        self.again: list[Batch] = []
        self.messages: list[tuple[bytes, list[Batch]]] = []
        self._holders: dict[str, HostHolder] = {}  # by host
        self._epoch, self._number = time.time_ns(), 0  # for batches of older nodes that came with refused ones
        self._since_look = 0
        self._room_at = 0.0
        self.forgotten = 0
        self._bounds = (MAX_EPOCHS, MAX_RUNS)
        self._is_verbose = False

    def take(self, message: bytes, peer: str, user: str = "") -> list[Batch]:
        """Return the new batches of a message.

        An unreadable message is counted for `peer`, its address, and gives none. Nor does a message with the key of
        `user` and data of another host, or one beyond the limits of a sender.
        """
        taken = self.take_all([(message, peer, user)])
        self.undescribed = taken.undescribed
        self.again, self.messages = taken.again, [(message, batches) for message, batches, _ in taken.kept]
        return taken.fresh

    def take_all(self, received: Sequence[tuple[bytes, str, str]]) -> Taken:
        """Return the new batches of messages, given with their addresses and users; otherwise as `take`.

        Messages of Colmet 0.6 are decoded together.
        """
        admitted = [self._rates.admit(user, peer, len(message)) for message, peer, user in received]
        self._look(len(received))
        self._is_verbose = log.isEnabledFor(logging.DEBUG)
        taken = Taken([], [], [], set())
        spent: list[tuple[SenderUse, float]] = []
        began_cpu, began = time.thread_time(), time.perf_counter()
        together = self._decoder.decode_together(
            [message if used is not None else b"" for (message, _, _), used in zip(received, admitted)]
        )
        now = time.perf_counter()
        size = sum([len(message) for (message, _, _), decoded in zip(received, together) if decoded is not None])
        s_per_byte = (now - began) / max(1, size)
        for (message, peer, user), used, decoded in zip(received, admitted, together):
            if used is None:
                self._limit(peer, user)
                now = time.perf_counter()  # charged to nobody
                continue
            cost_s = len(message) * s_per_byte if decoded is not None else 0.0
            self._take(message, peer, user, used, decoded, taken)
            before, now = now, time.perf_counter()
            spent.append((used, now - before + cost_s))
        # the CPU time of all, by their shares of the real time, which costs less to read
        share = (time.thread_time() - began_cpu) / max(1e-9, now - began)
        for used, real_s in spent:
            used.work_s += real_s * share
        return taken

    def _take(
        self, message: bytes, peer: str, user: str, used: SenderUse, decoded: Decoded | WireError | None, taken: Taken
    ) -> None:
        """Add the batches of a message, decoded or not."""
        try:
            if decoded is None:
                try:
                    decoded = self._decoder.decode(message, partial(self._rates.new_fields, used.sender))
                finally:
                    if self._decoder.new_fields:
                        self._rates.parsed(used.sender, self._decoder.new_fields)
            elif isinstance(decoded, WireError):
                raise decoded
            is_plain = len(decoded.batches) == 1 and not (decoded.skipped or decoded.unfit_tables)
            if not (is_plain and self._follows(message, decoded, peer, user, used, taken)):
                self._fresh(message, decoded, peer, user, used, taken)
        except OverBudget as err:
            self._rates.limited[err.budget] += 1
            self._limit(peer, user)
        except Undescribed as err:
            if user and err.host != user:
                self._refuse_foreign(err.host, peer, user)
            else:
                self._refuse_undescribed(err, peer)
                taken.undescribed.add((err.host, err.epoch))
        except WireError as err:
            self._reject(err, message, peer)

    def _follows(self, message: bytes, decoded: Decoded, peer: str, user: str, used: SenderUse, taken: Taken) -> bool:
        """Add the batch of a message that follows the last one of the agent that holds a host's name, as most do.

        Return False for any other batch, which `_fresh` decides about: it is not counted.
        """
        batch, dialect = decoded.batches[0], decoded.dialect
        host, epoch, number = batch.host, batch.epoch, batch.seq
        sender, holder = self.senders.get(host), self._holders.get(host)
        if sender is None or holder is None or (user and user != host):
            return False
        if not self._new_tables.knows(used.sender, batch):
            return False
        now_ns = time.time_ns()
        start = dialect if epoch is None or number is None else epoch
        if not holder.continues(start, peer, bool(user), batch.time_ns, now_ns):
            return False
        if not (epoch is None or number is None or sender.follow(epoch, number, decoded.checksum, self._bounds[1])):
            return False
        self.dialects[dialect] = self.dialects.get(dialect, 0) + 1
        self._count(sender, batch, dialect, now_ns)
        taken.kept.append((message, [batch], used.sender))
        taken.fresh.append(batch)
        return True

    def _count(self, sender: Sender, batch: Batch, dialect: str, now_ns: int) -> None:
        rows = batch.row_count
        sender.seen_ns, sender.lag_ns, sender.dialect = now_ns, now_ns - batch.time_ns, dialect
        sender.batches += 1
        sender.rows += rows
        if self._is_verbose:
            log.debug("batch received host=%s rows=%d seq=%s dialect=%s", batch.host, rows, batch.seq, dialect)

    def _fresh(self, message: bytes, decoded: Decoded, peer: str, user: str, used: SenderUse, taken: Taken) -> None:
        """Count the batches of a message, and add the new ones.

        Raises:
            OverBudget: they have more new fields, hosts or tables than the limits allow now.
        """
        for batch in decoded.batches:
            if user and batch.host != user:
                self._refuse_foreign(batch.host, peer, user)
                return
        self.dialects[decoded.dialect] = self.dialects.get(decoded.dialect, 0) + 1
        for batch in decoded.batches:
            if not self.admits_host(batch.host, peer, user):
                raise OverBudget("more new hosts than an address may have now", "hosts")
        if decoded.skipped:
            self._skip(decoded.batches[0].host if decoded.batches else peer, decoded.skipped)
        parts = [self._affordable(batch, used) for batch in decoded.batches]
        batches = tuple([batch for batch, _ in parts])
        kept = message
        if decoded.unfit_tables or batches != decoded.batches:  # the kept message has the tables of its batch alone
            kept, decoded = v1.encode(batches[0], decoded.checksum), decoded._replace(batches=batches)
        if self._keep(kept, decoded, peer, user, used, taken):
            host, beyond = batches[0].host, sum([rows for _, rows in parts])
            self._leave_out(host, decoded.unfit, "columns of Colmet's tables are of another kind")
            self._leave_out(host, beyond, "too many new tables, or columns that this version does not know")

    def _keep(self, message: bytes, decoded: Decoded, peer: str, user: str, used: SenderUse, taken: Taken) -> bool:
        """Note the batches of a message, both without dropped rows; add the new ones; return whether there are any."""
        now_ns = time.time_ns()
        fresh = []
        for batch in decoded.batches:
            sender = self.sender(batch.host)
            if batch.host in self.senders:  # names beyond the limit are counted together: each batch is accepted
                if not self._is_admitted(batch, decoded.dialect, peer, bool(user), now_ns):
                    continue
                if not self._is_new(batch, decoded.checksum, peer, bool(user)):
                    taken.again.append(batch)
                    sender.seen_ns, sender.lag_ns, sender.dialect = now_ns, now_ns - batch.time_ns, decoded.dialect
                    continue
            self._count(sender, batch, decoded.dialect, now_ns)
            fresh.append(batch)
        if not fresh:
            return False
        if tuple(fresh) == decoded.batches:
            taken.kept.append((message, fresh, used.sender))
        else:
            fresh = [self._numbered(batch) for batch in fresh]
            taken.kept.extend([(v1.encode(batch), [batch], used.sender) for batch in fresh])
        taken.fresh.extend(fresh)
        return True

    def _numbered(self, batch: Batch) -> Batch:
        """Return a batch that can be encoded; one without a number gets a number of this collector."""
        if batch.epoch is not None and batch.seq is not None:
            return batch
        self._number += 1
        return batch._replace(epoch=self._epoch, seq=self._number)

    def _is_admitted(self, batch: Batch, dialect: str, peer: str, is_keyed: bool, now_ns: int) -> bool:
        """Return whether the agent of a batch may send as its host; otherwise count and log it."""
        host, epoch = batch.host, batch.epoch
        start = dialect if epoch is None or batch.seq is None else epoch
        holder = self._holders.get(host)
        if holder is None:
            self._holders[host] = HostHolder(start, peer, batch.time_ns, now_ns)
            return True
        sender = self.sender(host)
        is_held = isinstance(start, int) and sender.holds(start)
        if holder.admits(start, peer, is_keyed, batch.time_ns, now_ns, is_held):
            return True
        sender.second_machine += 1
        if powers_of_ten(sender.second_machine):
            first, *others = holder.agents(now_ns)
            log.warning(
                "message refused, two machines send as one host, or two agents on one: host=%s held by=%s, refused=%s "
                "batches=%d; nodes with acknowledgements keep theirs: %s",
                *(host, first, " and ".join(others), sender.second_machine, REMEDY),
            )
        return False

    def _is_new(self, batch: Batch, checksum: int, peer: str, is_keyed: bool) -> bool:
        """Note a batch; return False for a duplicate."""
        if batch.epoch is None or batch.seq is None:
            return True
        sender = self.sender(batch.host)
        if sender.has(batch.epoch, batch.seq, checksum, is_keyed):
            sender.duplicates += 1
            log.debug("batch came twice host=%s epoch=%s seq=%s", batch.host, batch.epoch, batch.seq)
            return False
        if sender.knows(batch.epoch, batch.seq):
            sender.conflicts += 1
            if powers_of_ten(sender.conflicts):
                log.warning(
                    "batch has the number of another batch, both are kept: host=%s epoch=%s seq=%s from=[%s] "
                    "conflicts=%d; another sender uses this host's name, or the machine went back to a snapshot",
                    *(batch.host, batch.epoch, batch.seq, peer or "local", sender.conflicts),
                )
        sender.note(batch.epoch, batch.seq, checksum, *self._bounds)
        return True

    def _affordable(self, batch: Batch, used: SenderUse) -> tuple[Batch, int]:
        """Return a batch without its rows beyond the largest burst of its sender, and the number of these."""
        taken, rows = self._new_tables.admits(used.sender, used.nodes, batch)
        if taken is None:
            raise OverBudget("more tables of jobs than a sender may begin now", "tables")
        return taken, rows

    def hello(self, hello: Hello, peer: str = "", user: str = "") -> bool:
        """Note the batches still to come, from a node's Hello.

        Return False for a machine whose batches would be refused, as another one sends as this host: nothing is noted.
        """
        self._look(1 + len(hello.held))
        holder, sender = self._holders.get(hello.host), self.sender(hello.host)
        if holder is not None and not holder.listens_to(hello.epoch, peer, bool(user), time.time_ns()):
            return False
        sender.hello(hello, self._bounds[0])
        return True

    def shared_names(self) -> dict[str, list[str]]:
        """Return the host names used by several live agents, each with these; the received one first."""
        now_ns = time.time_ns()
        return {host: agents for host, holder in self._holders.items() if (agents := holder.agents(now_ns))}

    def _look(self, more: int) -> None:
        """Check the number of ranges in memory after every `LOOK_EVERY` messages, and limit it."""
        self._since_look += more
        if self._since_look >= LOOK_EVERY:
            self._since_look = 0
            runs = sum([sender.runs for sender in self.senders.values()])
            self._bounds = FEW if runs > MAX_ALL_RUNS else (MAX_EPOCHS, MAX_RUNS)

    def dump_senders(self) -> bytes:
        """Return which batches have come, as JSON for `restore`."""
        known = {name: sender.dump() for name, sender in self.senders.items()}
        holders = {host: holder.state() for host, holder in self._holders.items()}
        return json.dumps({"senders": known, "holders": holders}).encode()

    def restore(self, senders: bytes, messages: Iterable[bytes]) -> None:
        """Restore the received batches after a restart, from a dump of the senders and the messages after it."""
        now_ns = time.time_ns()
        if senders:
            try:
                state = json.loads(senders)
                for name, known in state["senders"].items():
                    self.sender(name).restore(*known)
                for host, holder in state["holders"].items():
                    self._holders[host] = HostHolder.restored(holder, now_ns)
            except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as err:
                log.error("state of the senders unreadable, duplicates may be stored: %r", err)
        for message in messages:
            try:
                decoded = self._decoder.heads(message)
            except WireError:
                continue
            for batch in decoded.batches:
                self._know(message, batch, decoded, now_ns)
        for sender in self.senders.values():
            sender.seen_ns = now_ns  # silent only after a full timeout from now

    def _know(self, message: bytes, batch: Batch, decoded: Decoded, now_ns: int) -> None:
        """Note a batch stored before a restart."""
        sender = self.sender(batch.host)
        if batch.host not in self.senders:
            return
        start = decoded.dialect if batch.epoch is None else batch.epoch
        holder = self._holders.get(batch.host)
        if holder is None or not holder.continues(start, "", True, batch.time_ns, now_ns):
            self._holders[batch.host] = HostHolder(start, "", batch.time_ns, now_ns)
        if batch.epoch is not None and batch.seq is not None:
            shortened = v1.shortened_from(message)
            sender.note(batch.epoch, batch.seq, decoded.checksum if shortened is None else shortened)

    def sender(self, name: str) -> Sender:
        """Return the counts of one sender."""
        sender = self.senders.get(name)
        if sender is None:
            if len(self.senders) >= MAX_SENDERS:
                self._make_room()
            if len(self.senders) >= MAX_SENDERS:
                name = OTHERS
            sender = self.senders.setdefault(name, Sender())
        return sender

    def _make_room(self) -> None:
        """Forget senders to make room for a new node; add their counts to the others."""
        now = time.monotonic()
        if now < self._room_at:
            return
        self._room_at = now + ROOM_S
        old_ns = time.time_ns() - int(OLD_S * 1e9)
        ranked = sorted(
            (bool(sender.rows or sender.version), sender.seen_ns, name)
            for name, sender in self.senders.items()
            if name != OTHERS and (sender.seen_ns < old_ns or not (sender.rows or sender.version))
        )
        others = self.senders.setdefault(OTHERS, Sender())
        names = [name for _, _, name in ranked[: max(2, MAX_SENDERS // 8)]]
        for name in names:
            others.add(self.senders.pop(name))
            self._holders.pop(name, None)
        before, self.forgotten = self.forgotten, self.forgotten + len(names)
        if powers_of_ten(self.forgotten, before):
            log.warning("senders forgotten, there are too many forgotten=%d", self.forgotten)

    def admits_host(self, host: str, peer: str, user: str) -> bool:
        """Return whether a host is admitted: it is known, has a key, or is within the limit of its address."""
        return bool(user) or host in self.senders or self._rates.admits_host(peer)

    def most_new_jobs(self) -> tuple[str, int]:
        """Return the sender with the most new jobs in the last one to two hours, and their number; "" without any."""
        return self._new_tables.most_new_jobs()

    def heard(self) -> dict[str, Heard]:
        """Return the sending nodes. For any thread."""
        senders = list(self.senders.items())
        return {name: Heard(sender.seen_ns, sender.lag_ns) for name, sender in senders if sender.batches}

    def without_acknowledgements(self) -> int:
        """Return the number of sending nodes without a Hello."""
        return sum([sender.batches > 0 and not sender.version for sender in self.senders.values()])

    def _reject(self, err: WireError, message: bytes, peer: str) -> None:
        name = f"[{peer or 'local'}]"
        sender = self.sender(name)
        sender.rejects += 1
        sender.seen_ns = time.time_ns()
        self.rejects += 1
        self.refusals.add(name, str(err))
        if powers_of_ten(sender.rejects):
            log.warning("message refused from=%s refused=%d bytes=%d: %.300s", name, sender.rejects, len(message), err)

    def _refuse_undescribed(self, err: Undescribed, peer: str) -> None:
        """Refuse a message in the short form with an unknown table; its sender sends it again in full."""
        name = err.host if err.host in self.senders else f"[{peer or 'local'}]"
        sender = self.sender(name)
        sender.undescribed += 1
        if powers_of_ten(sender.undescribed):
            log.warning(
                "message refused, it lacks a description; its sender sends it again in full from=%s times=%d: %s",
                *(name, sender.undescribed, err),
            )

    def _refuse_foreign(self, host: str, peer: str, user: str) -> None:
        sender = self.sender(user)
        sender.foreign += 1
        self.refusals.add(host, f"it has the key of {user}")
        if powers_of_ten(sender.foreign):
            log.warning(
                "message refused, the key is that of another host key=%s host=%s from=[%s] refused=%d; "
                "a key is for the host that its file is named after",
                *(user, host, peer, sender.foreign),
            )

    def _leave_out(self, host: str, rows: int, why: str) -> None:
        sender = self.sender(host)
        before, sender.left_out = sender.left_out, sender.left_out + rows
        if powers_of_ten(sender.left_out, before):
            log.warning("rows dropped from=%s left_out=%d cause=%s", host, sender.left_out, why)

    def _skip(self, host: str, values: int) -> None:
        sender = self.sender(host)
        before, sender.skipped = sender.skipped, sender.skipped + values
        if powers_of_ten(sender.skipped, before):
            log.warning(
                "values of a Rust node skipped, this version knows no name for their backend or metric from=%s "
                "skipped_values=%d",
                *(host, sender.skipped),
            )

    def _limit(self, peer: str, user: str) -> None:
        name = user or f"[{peer or 'local'}]"
        sender = self.sender(name)
        sender.limited += 1
        if powers_of_ten(sender.limited):
            log.warning(
                "messages dropped, beyond a limit of one sender from=%s left_out=%d (%s of all senders)",
                *(name, sender.limited, " ".join([f"{name}={n}" for name, n in self._rates.limited.items() if n])),
            )

    def report(self) -> Sequence[str]:
        """Return a line for all senders, and one for each with lost, duplicate or refused data.

        Batches missing from a node with acknowledgements are not lost: it sends them again.
        """
        senders = self.senders.values()
        total = f"received senders={len(senders)} forgotten={self.forgotten} {_counts(senders)}"
        wrong = [
            f"sender {name} {_counts([s])}"
            for name, s in sorted(self.senders.items())
            if (s.missing and not s.version)
            or any((s.duplicates, s.rejects, s.skipped, s.foreign, s.limited, s.left_out, s.conflicts, s.undescribed))
            or s.second_machine
        ]
        return [total, *wrong]


def _counts(senders: Collection[Sender]) -> str:
    sums = {name: sum([getattr(one, name) for one in senders]) for name in COUNTS}
    return " ".join([f"{_LOGGED_AS.get(name, name)}={count}" for name, count in sums.items()])
