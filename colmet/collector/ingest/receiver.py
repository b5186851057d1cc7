"""Decoding of messages to batches, and counts per sender: received, missing, duplicate and refused."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colmet.collector.ingest.checksums import Checksums, checksum
from colmet.collector.ingest.namesakes import Namesakes
from colmet.collector.ingest.novelty import Novelty
from colmet.collector.ingest.rate_limit import RateLimit, sender_of
from colmet.common.errors import OverBudget, WireError
from colmet.common.live.namesakes import MOST, base_of, is_namesake, name_of, place_of
from colmet.common.live.summary import Heard
from colmet.common.ranges import Ranges
from colmet.common.runtime.logs import powers_of_ten
from colmet.common.schema import Batch
from colmet.common.wire import Decoded, Decoder, dialect_of, v1
from colmet.common.wire.link import Hello

log = logging.getLogger(__name__)

# Hosts and addresses counted separately. Any client can make names up: senders beyond this limit share one entry.
MAX_SENDERS = 16384
OTHERS = "(others)"
# Starts of one node with batches that may still come: a node started several times while the collector was away sends
# all of them, and again if the collector is killed before it has acknowledged them.
MAX_EPOCHS = 256
# Ranges of received batches of one start: new batches arrive among re-sent older ones, and some go to another
# collector.
MAX_RUNS = 1024
# Over all senders. Beyond it the limits of each are FEW: (starts, ranges).
MAX_ALL_RUNS = 1 << 18
FEW = (4, 16)
MAX_CHECKSUMS = 8192  # of one sender, about; those of its latest starts
# Senders without rows and without a Hello are forgotten first, then those silent for longest.
OLD_S = 3600.0
ROOM_S = 10.0  # between two removals of senders, an eighth each
SUMMED = (
    *("batches", "rows", "duplicates", "rejects", "skipped"),
    *("foreign", "limited", "left_out", "conflicts", "overfull"),
)
LOOK_EVERY = 10_000  # messages, and starts named in Hellos, between two checks of the number of ranges
END = 1 << 63  # above all numbers


class Sequence64:
    """The received numbers of one count.

    Beyond the limit of ranges the oldest are forgotten. A forgotten number counts as new when it comes again: it may be
    stored twice then, and nothing is lost.

    Attributes:
        checksums: of the latest batches.
        floor: lowest number still to come, from the node's Hello; -1 without one. Batches sent before the collector
            listened are then not missing.
    """

    def __init__(self, floor: int = -1) -> None:
        self.floor = floor
        self.checksums = Checksums()
        self.unchecked = 0  # numbers below it are of an earlier version, without checksums
        self._seen = Ranges()
        self._forgotten = 0  # missing between forgotten ranges

    def __len__(self) -> int:
        """Return the number of received ranges."""
        return len(self._seen)

    def __contains__(self, number: int) -> bool:
        """Return whether this number has come."""
        return number in self._seen

    def add(self, number: int, most: int = MAX_RUNS) -> bool:
        """Note a number; return False if it is a duplicate. At most `most` ranges are kept."""
        if not self._seen.add(number, number):
            return False
        while len(self._seen) > most:
            (first, last), (following, _) = itertools.islice(self._seen, 2)
            self._seen.remove(first, last)
            self._forgotten += max(0, following - max(last + 1, self.floor))
        return True

    @property
    def missing(self) -> int:
        """Return the count of missing numbers up to the last received: from the floor, or from the first received."""
        if not self._seen.count:
            return self._forgotten
        start, last = self.floor if self.floor >= 0 else self._seen.first, self._seen.last
        if start > last:
            return self._forgotten
        came = sum([b - a + 1 for a, b in self._seen.within(start, last)])
        return self._forgotten + last + 1 - start - came

    @property
    def elsewhere(self) -> int:
        """Return the count of missing numbers below the floor: another collector has them, or they are lost."""
        if not self._seen.count:
            return 0
        end = min(self.floor, self._seen.last + 1)
        came = sum([b - a + 1 for a, b in self._seen.within(self._seen.first, end - 1)])
        return max(0, end - self._seen.first - came)

    @property
    def end(self) -> int:
        """Return the number after the last received one; 0 without any."""
        return int(self._seen.last) + 1 if self._seen.count else 0

    def seen(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the received numbers from `first` to `last`, in ranges."""
        return self._seen.within(first, last)

    def state(self) -> list[Any]:
        """Return the state for `restored`: the first number, the next one, the gaps, the floor."""
        if not self._seen.count:
            return [-1, -1, [], self.floor]
        runs = list(self._seen)
        gaps = [(last + 1, first) for (_, last), (first, _) in zip(runs, runs[1:])]
        return [self._seen.first, self._seen.last + 1, gaps, self.floor]

    @classmethod
    def restored(cls, state: Sequence[Any]) -> Sequence64:
        """Return the count with this state; ValueError or TypeError if the state is malformed."""
        first, end, gaps, *rest = state
        sequence = cls(*[int(floor) for floor in rest])
        if int(first) < int(end):
            sequence._seen.add(int(first), int(end) - 1)
        for first, end in gaps[-MAX_RUNS:]:
            sequence._seen.remove(int(first), int(end) - 1)
        return sequence


@dataclass
class Sender:
    """Counts of one host (or of one address, for messages without a host)."""

    batches: int = 0  # accepted
    rows: int = 0  # in them
    duplicates: int = 0  # batches received before, dropped
    rejects: int = 0  # unreadable messages, counted by address
    skipped: int = 0  # values without a name here
    seen_ns: int = 0  # time of its latest message, since the epoch; 0 before
    lag_ns: int = 0  # age of its latest batch on arrival, by the clocks of both
    dialect: str = ""  # of its latest batch
    version: str = ""  # of Colmet there; empty without a Hello, for nodes without acknowledgements
    foreign: int = 0  # messages with its key and data of other hosts, refused
    limited: int = 0  # messages beyond the limits of one sender, dropped
    left_out: int = 0  # rows dropped from accepted batches, as their tables do not fit
    conflicts: int = 0  # batches with the number of an earlier one and other content; both are kept
    overfull: int = 0  # batches beyond the copies kept of one number, refused and not acknowledged
    _forgotten_missing: int = 0
    _epochs: OrderedDict[int, Sequence64] = field(default_factory=OrderedDict)
    _checked: list[int] = field(default_factory=list)  # epochs with checksums
    _held: frozenset[int] = frozenset()  # epochs with batches still to come, from its Hello

    @property
    def missing(self) -> int:
        """Return the number of batches sent, by the numbers of the received ones, and not received."""
        return self._forgotten_missing + sum(sequence.missing for sequence in self._epochs.values())

    @property
    def elsewhere(self) -> int:
        """Return the number of batches not to come any more: at another collector, or dropped by the node."""
        return sum(sequence.elsewhere for sequence in self._epochs.values())

    @property
    def runs(self) -> int:
        """Return the number of ranges in memory, about."""
        return sum([1 + len(sequence) for sequence in self._epochs.values()])

    def add(self, other: Sender) -> None:
        """Add the counts of another sender."""
        for name in SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._forgotten_missing += other.missing

    def _sequence(self, epoch: int, most: int) -> Sequence64:
        sequence = self._epochs.get(epoch)
        if sequence is None:
            sequence = self._epochs[epoch] = Sequence64()
            self._bound(most, epoch)
        return sequence

    def _bound(self, most: int, kept: int) -> None:
        """Forget starts beyond `most`: first the oldest without batches to come. No count is lost."""
        extra = len(self._epochs) - most
        if extra > 0:
            for oldest in sorted(self._epochs, key=lambda one: (one == kept, one in self._held, one))[:extra]:
                self._forgotten_missing += self._epochs.pop(oldest).missing

    def knows(self, epoch: int, number: int) -> bool:
        """Return whether a batch of this number has come, with any content."""
        sequence = self._epochs.get(epoch)
        return sequence is not None and number in sequence

    def has(self, epoch: int, number: int, crc: int, keyed: bool = False) -> bool:
        """Return whether exactly this batch has come.

        Without a checksum in memory, the number alone decides: the batch is a duplicate if no other agent can have used
        the number, as its sender has a key, or if the number is older than the checksums.
        """
        sequence = self._epochs.get(epoch)
        if sequence is None or number not in sequence:
            return False
        kept = sequence.checksums.get(number)
        return keyed or number < sequence.unchecked if kept is None else kept == crc

    def note(self, epoch: int, number: int, crc: int, epochs: int = MAX_EPOCHS, runs: int = MAX_RUNS) -> None:
        """Note a new batch.

        At most `epochs` starts are kept, with `runs` ranges each.
        """
        sequence = self._epochs.get(epoch)
        if sequence is None:
            sequence = self._sequence(epoch, epochs)
        sequence.add(number, runs)
        if epoch not in self._checked:
            self._bound_checksums()
            self._checked.append(epoch)
        sequence.checksums.note(number, crc)

    def _bound_checksums(self) -> None:
        """Limit the checksums of all starts together: those of the earliest starts are forgotten first."""
        self._checked = [epoch for epoch in self._checked if epoch in self._epochs]
        while sum([len(self._epochs[epoch].checksums) for epoch in self._checked]) > MAX_CHECKSUMS:
            self._epochs[self._checked.pop(0)].checksums = Checksums()

    def hello(self, hello: Hello, epochs: int = MAX_EPOCHS, others: Container[int | str] = ()) -> None:
        """Note the batches still to come, from a Hello; at most `epochs` starts are kept.

        It is not applied to the starts of `others`, agents sending under the same host name.
        """
        self.version = hello.version
        self.seen_ns = time.time_ns()
        floors = {epoch: first for epoch, first, _ in hello.held[-epochs:]}
        floors.setdefault(hello.epoch, hello.coming)
        self._held = frozenset(floors)
        for epoch, floor in floors.items():
            self._epochs.setdefault(epoch, Sequence64()).floor = floor
        self._bound(epochs, hello.epoch)
        for epoch, sequence in self._epochs.items():
            if epoch < hello.epoch and epoch not in floors and epoch not in others:
                sequence.floor = END

    def expects(self, epoch: int) -> bool:
        """Return whether batches of this start have come."""
        return epoch in self._epochs

    def seen(self, epoch: int, first: int, last: int) -> list[tuple[int, int]]:
        """Return the received batches from `first` to `last`, in ranges."""
        sequence = self._epochs.get(epoch)
        return sequence.seen(first, last) if sequence is not None else []

    def epochs(self) -> dict[int, list[Any]]:
        """Return the counts of its latest starts, for `restore`."""
        return {epoch: sequence.state() for epoch, sequence in self._epochs.items()}

    def checksums(self) -> dict[int, str]:
        """Return the checksums of the latest batches, by epoch, for `restore_checksums`."""
        found = {}
        for epoch in self._checked:
            sequence = self._epochs.get(epoch)
            if sequence is not None and (state := sequence.checksums.state(sequence.floor)):
                found[epoch] = state
        return found

    def restore(self, epochs: Mapping[str, Sequence[Any]], checked: bool) -> None:
        """Continue from the result of `epochs`; `checked` is False for one of a version without checksums."""
        self._epochs = OrderedDict((int(epoch), Sequence64.restored(state)) for epoch, state in epochs.items())
        for sequence in self._epochs.values() if not checked else ():
            sequence.unchecked = sequence.end

    def unchecked(self) -> dict[int, int]:
        """Return the end of the numbers without checksums, of an earlier version, by epoch, for `restore_unchecked`."""
        return {epoch: sequence.unchecked for epoch, sequence in self._epochs.items() if sequence.unchecked}

    def restore_unchecked(self, unchecked: Mapping[str, int]) -> None:
        """Continue from the result of `unchecked`."""
        for epoch, number in unchecked.items():
            if int(epoch) in self._epochs:
                self._epochs[int(epoch)].unchecked = int(number)

    def restore_checksums(self, checksums: Mapping[str, str]) -> None:
        """Continue from the result of `checksums`."""
        for epoch, state in checksums.items():
            if int(epoch) in self._epochs:
                self._epochs[int(epoch)].checksums = Checksums.restored(state)
                self._checked.append(int(epoch))


class Receiver:
    """Decoder of messages, with counts by sender.

    Several agents sending under one host name are stored under separate names: that of the host, then `host~2` and so
    on (`Namesakes`). The batches and the stored messages have these names.

    Args:
        rates: limits of each sender.
        novelty: limits on new tables; none by default.

    Attributes:
        senders: by stored name, or by address for messages without a host; at most `MAX_SENDERS` and one for all
            others.
        again: the duplicate batches of the latest message.
        messages: the latest message for the outputs: each message with its decoded batches.
        forgotten: senders forgotten for want of room; their counts are added to the others.
        apart: batches stored under another name than that of their host.
    """

    def __init__(self, rates: RateLimit | None = None, novelty: Novelty | None = None) -> None:
        self._rates = rates or RateLimit()
        self._novelty = novelty or Novelty(0)
        self._decoder = Decoder()
        self.senders: dict[str, Sender] = {}
        self.dialects: dict[str, int] = {}
        self.rejects = 0
        self.apart = 0
        self.again: list[Batch] = []
        self.messages: list[tuple[bytes, list[Batch]]] = []
        self._namesakes: dict[str, Namesakes] = {}  # by host
        self._numbered = time.time_ns(), 0  # epoch and number for batches of older nodes stored apart
        self._since_look = 0
        self._room_at = 0.0
        self.forgotten = 0
        self._bounds = (MAX_EPOCHS, MAX_RUNS)

    def take(self, message: bytes, peer: str, user: str = "") -> list[Batch]:
        """Return the new batches of a message.

        An unreadable message is counted for `peer`, its address, and gives none. Nor does a message with the key of
        `user` and data of another host, or one beyond the limits of a sender.
        """
        self.again, self.messages = [], []
        if not self._rates.admits(user, peer, len(message)):
            self._limit(peer, user)
            return []
        self._look(1)
        began = time.thread_time()
        try:
            decoded = self._decoder.decode(message, self._rates.new_fields(user, peer))
            for batch in decoded.batches:
                if is_namesake(batch.host):
                    raise WireError(f"{batch.host} is a name that a collector gives, not that of a host")
            return self._fresh(message, decoded, peer, user)
        except OverBudget as err:
            self._rates.limited[err.budget] += 1
            self._limit(peer, user)
        except WireError as err:
            self._reject(err, message, peer)
        finally:
            self._rates.worked(user, peer, time.thread_time() - began, self._decoder.new_fields)
        return []

    def _fresh(self, message: bytes, decoded: Decoded, peer: str, user: str) -> list[Batch]:
        """Count the batches of a message, and return the new ones.

        Raises:
            OverBudget: they have more new fields, hosts or tables than the limits allow now.
        """
        if user and any(batch.host != user for batch in decoded.batches):
            self._refuse_foreign(next(batch.host for batch in decoded.batches if batch.host != user), peer, user)
            return []
        self.dialects[decoded.dialect] = self.dialects.get(decoded.dialect, 0) + 1
        if not all(self.admits_host(batch.host, peer, user) for batch in decoded.batches):
            raise OverBudget("more new hosts than an address may have now", "hosts")
        if decoded.skipped:
            self._skip(decoded.batches[0].host if decoded.batches else peer, decoded.skipped)
        if decoded.unfit:
            self._leave_out(decoded.batches[0].host, decoded.unfit, "columns of Colmet's tables are of another kind")
        batches = tuple([self._affordable(batch, peer, user) for batch in decoded.batches])
        kept = message
        if any(batch is not one for batch, one in zip(batches, decoded.batches)):
            kept, decoded = v1.encode(batches[0], checksum(message)), decoded._replace(batches=batches)
        return self._keep(message, kept, decoded, peer, bool(user))

    def _keep(self, came: bytes, message: bytes, decoded: Decoded, peer: str, keyed: bool) -> list[Batch]:
        """Note the batches of a message; return the new ones, each with its stored name.

        Args:
            came: the message as received.
            message: the same without dropped rows.
            decoded: the decoded `message`.
            peer: its address.
            keyed: whether its sender has a key.
        """
        now_ns = time.time_ns()
        fresh = []
        for batch in decoded.batches:
            sender = self.sender(batch.host)
            if batch.host not in self.senders:  # names beyond the limit are counted together: each batch is accepted
                name: str | None = batch.host
            else:
                name = self._name(came, batch, decoded.dialect, peer, keyed, now_ns)
                sender = self.sender(name or batch.host)
            sender.seen_ns, sender.lag_ns, sender.dialect = now_ns, now_ns - batch.time_ns, decoded.dialect
            if name is None:
                continue
            rows = batch.row_count
            sender.batches += 1
            sender.rows += rows
            log.debug("batch received host=%s rows=%d seq=%s dialect=%s", name, rows, batch.seq, decoded.dialect)
            fresh.append(batch if name == batch.host else self._renamed(batch, name))
        if all(batch is one for batch, one in zip(fresh, decoded.batches)) and len(fresh) == len(decoded.batches):
            self.messages = [(message, fresh)] if fresh else []
        elif fresh:
            fresh = [self._renamed(batch, batch.host) for batch in fresh]
            whole = v1.rename(message, decoded.batches[0].host, fresh[0].host) if len(decoded.batches) == 1 else None
            self.messages = [(whole or v1.encode(batch), [batch]) for batch in fresh]
        return fresh

    def _name(self, message: bytes, batch: Batch, dialect: str, peer: str, keyed: bool, now_ns: int) -> str | None:
        """Return the stored name for a batch; None for a duplicate, or for one that cannot be kept."""
        host, epoch, number = batch.host, batch.epoch, batch.seq
        namesakes = self._namesakes.get(host)
        if namesakes is None:
            namesakes = self._namesakes[host] = Namesakes(host)
        if epoch is None or number is None:
            name = name_of(host, namesakes.place(dialect, peer, batch.time_ns, now_ns))
        else:
            crc = checksum(message)
            for name in namesakes.names:
                sender = self.senders.get(name)
                if sender is not None and sender.has(epoch, number, crc, keyed):
                    sender.duplicates += 1
                    self.again.append(batch if name == host else batch._replace(host=name))
                    log.debug("batch came twice host=%s epoch=%s seq=%s", name, epoch, number)
                    return None
            # a start with a key belongs to one agent, at any address
            place = namesakes.place(epoch, "" if keyed else peer, batch.time_ns, now_ns)
            free = self._free(host, place, epoch, number)
            if free != place:
                self._note_conflict(batch, peer, kept=free is not None)
            if free is None:
                return None
            name = name_of(host, free)
            sender = self.sender(name)
            if name in self.senders:
                sender.note(epoch, number, crc, *self._bounds)
        if name != host:
            namesakes.add(name)
            self._note_apart(host, name, peer)
        return name

    def _free(self, host: str, place: int, epoch: int, number: int) -> int | None:
        """Return this place, or the next one without a stored batch of this number; None if all have one."""
        for at in range(place, MOST):
            sender = self.senders.get(name_of(host, at))
            if sender is None or not sender.knows(epoch, number):
                return at
        return None

    def _renamed(self, batch: Batch, name: str) -> Batch:
        """Return a batch under another name, numbered if it was not: it is stored in a message of its own."""
        if batch.epoch is None or batch.seq is None:
            epoch, number = self._numbered
            self._numbered = epoch, number + 1
            return batch._replace(host=name, epoch=epoch, seq=number)
        return batch._replace(host=name)

    def _affordable(self, batch: Batch, peer: str, user: str) -> Batch:
        """Return a batch without its rows beyond the largest burst of its sender."""
        taken, rows = self._novelty.admits(*sender_of(user, peer), batch)
        if taken is None:
            raise OverBudget("more tables of jobs than a sender may begin now", "tables")
        if rows:
            self._leave_out(batch.host, rows, "too many new tables, or columns that this version does not know")
        return taken

    def hello(self, hello: Hello) -> None:
        """Note the batches still to come, from a node's Hello."""
        self._look(1 + len(hello.held))
        names = self.names(hello.host)
        others = self._namesakes[hello.host].live(time.time_ns()) if len(names) > 1 else ()
        for name in names:
            sender = self.sender(name)
            if name == hello.host or sender.expects(hello.epoch):
                sender.hello(hello, self._bounds[0], others)

    def names(self, host: str) -> Sequence[str]:
        """Return the stored names of a host's agents; its own first."""
        namesakes = self._namesakes.get(host)
        return namesakes.names if namesakes is not None else [host]

    def shared_names(self) -> dict[str, list[str]]:
        """Return the host names in use by more than one live agent, each with its stored names."""
        now_ns = time.time_ns()
        return {
            host: names
            for host, namesakes in self._namesakes.items()
            if len(namesakes.names) > 1 and len(names := namesakes.live_names(now_ns)) > 1
        }

    def _look(self, more: int) -> None:
        """Check the number of ranges in memory after every `LOOK_EVERY` messages, and limit it."""
        self._since_look += more
        if self._since_look >= LOOK_EVERY:
            self._since_look = 0
            runs = sum([sender.runs for sender in self.senders.values()])
            self._bounds = FEW if runs > MAX_ALL_RUNS else (MAX_EPOCHS, MAX_RUNS)

    def dump_senders(self) -> bytes:
        """Return which batches have come, as JSON for `restore`."""
        known: dict[str, Any] = {name: epochs for name, s in self.senders.items() if (epochs := s.epochs())}
        checksums = {name: found for name, s in self.senders.items() if (found := s.checksums())}
        unchecked = {name: numbers for name, s in self.senders.items() if (numbers := s.unchecked())}
        agents = {host: namesakes.state() for host, namesakes in self._namesakes.items()}
        known[""] = {
            "checksums": checksums,
            "unchecked": unchecked,
            "agents": agents,
        }  # last: earlier versions read only the entries before it
        return json.dumps(known).encode()

    def restore(self, senders: bytes, messages: Iterable[bytes]) -> None:
        """Restore the received batches after a restart, from a dump of the senders and the messages after it."""
        now_ns = time.time_ns()
        if senders:
            try:
                known = json.loads(senders)
                more = known.pop("", {})
                for name, epochs in known.items():
                    self.sender(name).restore(epochs, checked="checksums" in more)
                for name, checksums in more.get("checksums", {}).items():
                    self.sender(name).restore_checksums(checksums)
                for name, numbers in more.get("unchecked", {}).items():
                    self.sender(name).restore_unchecked(numbers)
                for host, state in more.get("agents", {}).items():
                    self._namesakes[host] = Namesakes.restored(host, state, now_ns)
            except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as err:
                log.error("state of the senders unreadable, duplicates may be stored: %r", err)
        for message in messages:
            try:
                batches = self._decoder.heads(message)
            except WireError:
                continue
            for batch in batches:
                self._know(message, batch, now_ns)
        for sender in self.senders.values():
            sender.seen_ns = now_ns  # silent only after a full timeout from now

    def _know(self, message: bytes, batch: Batch, now_ns: int) -> None:
        """Note a batch stored before a restart."""
        sender = self.sender(batch.host)
        if batch.host not in self.senders:
            return
        host = base_of(batch.host)
        namesakes = self._namesakes.get(host)
        if namesakes is None:
            namesakes = self._namesakes[host] = Namesakes(host)
        namesakes.add(batch.host)
        if batch.epoch is None or batch.seq is None:
            namesakes.replay(place_of(batch.host), dialect_of(message), batch.time_ns, now_ns)
        else:
            came = message if batch.host == host else v1.rename(message, batch.host, host)
            shortened = v1.shortened_from(message)
            crc = checksum(came or message) if shortened is None else shortened
            sender.note(batch.epoch, batch.seq, crc)
            namesakes.replay(place_of(batch.host), batch.epoch, batch.time_ns, now_ns)

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
            self._namesakes.pop(name, None)
        before, self.forgotten = self.forgotten, self.forgotten + len(names)
        if powers_of_ten(self.forgotten, before):
            log.warning("senders forgotten, there are too many forgotten=%d", self.forgotten)

    def admits_host(self, host: str, peer: str, user: str) -> bool:
        """Return whether a host is admitted: it is known, has a key, or is within the limit of its address."""
        return bool(user) or host in self.senders or self._rates.admits_host(peer)

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
        if powers_of_ten(sender.rejects):
            log.warning("message refused from=%s refused=%d bytes=%d: %.300s", name, sender.rejects, len(message), err)

    def _refuse_foreign(self, host: str, peer: str, user: str) -> None:
        sender = self.sender(user)
        sender.foreign += 1
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

    def _note_apart(self, host: str, name: str, peer: str) -> None:
        self.apart += 1
        if powers_of_ten(self.apart):
            log.warning(
                "several agents send as one host, each is stored under its own name: do two nodes share a name, or "
                "does an older colmet-node still run? host=%s name=%s from=[%s] batches=%d",
                *(host, name, peer or "local", self.apart),
            )

    def _note_conflict(self, batch: Batch, peer: str, kept: bool) -> None:
        sender = self.sender(batch.host)
        sender.conflicts += 1
        sender.overfull += not kept
        if powers_of_ten(sender.conflicts) or (not kept and powers_of_ten(sender.overfull)):
            log.warning(
                "batch has the number of another batch, both are kept up to a limit: host=%s epoch=%s seq=%s "
                "from=[%s] conflicts=%d refused=%d; another sender uses this host's name, or a node's spool was copied",
                *(batch.host, batch.epoch, batch.seq, peer or "local", sender.conflicts, sender.overfull),
            )

    def _limit(self, peer: str, user: str) -> None:
        name = user or f"[{peer or 'local'}]"
        sender = self.sender(name)
        sender.limited += 1
        if powers_of_ten(sender.limited):
            log.warning(
                "messages dropped, beyond --max-rate, --max-byte-rate or another limit of one sender from=%s "
                "left_out=%d (%s of all senders)",
                *(name, sender.limited, " ".join([f"{name}={n}" for name, n in self._rates.counters().items() if n])),
            )

    def report(self) -> Sequence[str]:
        """Return a line for all senders, and one for each with lost, duplicate or refused data.

        Batches missing from a node with acknowledgements are not lost: it sends them again.
        """
        senders = self.senders.values()
        total = (
            f"received senders={len(senders)} forgotten={self.forgotten} batches={sum(s.batches for s in senders)} "
            f"rows={sum(s.rows for s in senders)} missing={sum(s.missing for s in senders)} "
            f"duplicates={sum(s.duplicates for s in senders)} refused={self.rejects} "
            f"skipped_values={sum(s.skipped for s in senders)} elsewhere={sum(s.elsewhere for s in senders)} "
            f"foreign={sum(s.foreign for s in senders)} limited={sum(s.limited for s in senders)} "
            f"left_out_rows={sum(s.left_out for s in senders)} "
            f"conflicts={sum(s.conflicts for s in senders)} overfull={sum(s.overfull for s in senders)} "
            f"apart={self.apart}"
        )
        wrong = [
            f"sender {name} batches={s.batches} rows={s.rows} missing={s.missing} duplicates={s.duplicates} "
            f"refused={s.rejects} skipped_values={s.skipped} foreign={s.foreign} limited={s.limited} "
            f"left_out_rows={s.left_out} conflicts={s.conflicts} overfull={s.overfull}"
            for name, s in sorted(self.senders.items())
            if (s.missing and not s.version)
            or any((s.duplicates, s.rejects, s.skipped, s.foreign, s.limited, s.left_out, s.conflicts))
        ]
        return [total, *wrong]
