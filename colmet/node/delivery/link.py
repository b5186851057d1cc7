"""The link: the thread that sends the outbox's batches and receives acknowledgements."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from colmet import __version__
from colmet.common.config import cli
from colmet.common.config.keys import read_uris
from colmet.common.daemon.logs import powers_of_ten
from colmet.common.daemon.pacing import TokenBucket, growing_pause_s
from colmet.common.errors import ConfigError, WireError
from colmet.common.host.host import Host
from colmet.common.transport import LinkClient, Push, Socket, check_target, curve, link_uri, wait
from colmet.common.wire import Decoder, colmet06
from colmet.common.wire import link as wire
from colmet.node.delivery.outbox import MAX_AGE_S, Outbox
from colmet.node.delivery.spool import LOCK, EncodedBatch, Spool
from colmet.node.delivery.uplink import AUTO, COLMET06, V1, Requests, Times, Uplink, UplinkState, by_preference

log = logging.getLogger(__name__)

DEFAULT_URI = "tcp://127.0.0.1:5556"
SPOOL_DIRECTORY = "/var/spool/colmet"
RATE = 200.0  # batches a second that wait after an outage, besides the new ones
TOKEN_BYTES = 32 << 10  # a larger batch counts as several at the bounded rate
FEW = 4  # unacknowledged batches on their way
CALM = 0.75  # of the time between two questions: longest wait while nothing is urgent
UNASKED = frozenset({"nvidiastats_default"})  # makes a collector of 0.6.10 with HDF5 output exit
Key = tuple[int, int]


def add_options(parser: cli.Options) -> None:
    """Declare the options of the collectors' addresses and of the batches kept until they are acknowledged."""
    parser.add_argument(
        "--zeromq-uri",
        metavar="URI",
        action="append",
        help="address of colmet-collector; repeatable: nodes spread over several collectors, and use another one "
        "while theirs is unavailable; '': only the address written by `colmet enrol`, and no measurement without it "
        f"(default: that of `colmet enrol`, else {DEFAULT_URI})",
    )
    parser.add_argument(
        "--zeromq-link-uri",
        metavar="URI",
        action="append",
        help=cli.Rare(
            "address of the collector for acknowledgements, in the order of --zeromq-uri; '': none, and batches on "
            "their way are lost when the collector stops (default: the next port)"
        ),
    )
    parser.add_argument(
        "--wire",
        choices=(AUTO, V1, COLMET06),
        default=AUTO,
        help=cli.Rare(
            "format of the messages: v1 (this version), colmet06 (Colmet 0.6), or auto: v1, or colmet06 if the "
            "collector receives data and does not answer (default: %(default)s)"
        ),
    )
    parser.add_argument(
        "--spool-dir",
        metavar="DIR",
        help=cli.Rare(
            "keep batches in this directory until the collector acknowledges them; '': in memory only (default: "
            f"{SPOOL_DIRECTORY}, if it is its user's own or can be made, else in memory)"
        ),
    )
    parser.add_argument(
        "--spool-size",
        metavar="SIZE",
        type=cli.size_bytes,
        default=1 << 30,
        help=cli.Rare("limit of --spool-dir; beyond it the oldest batches are dropped (default: 1G)"),
    )


def open_outbox(options: argparse.Namespace, host: Host, host_name: str) -> Outbox:
    """Return the outbox, with the spool directory of the options.

    If the directory cannot be used, a warning is logged and batches stay in memory.
    """
    directory = SPOOL_DIRECTORY if options.spool_dir is None else options.spool_dir
    now_ns = time.time_ns()
    if not directory:
        log.info("no --spool-dir: unacknowledged batches are lost when colmet-node ends")
        return Outbox(now_ns, None)
    private = None
    try:
        private = host.private_directory(os.path.abspath(directory))
        private.lock(LOCK)
        # the clock may have been set back since the last start
        epoch = max(now_ns, 1 + Spool.last_epoch(private))
    except OSError as err:
        if private is not None:
            private.close()
        why = "another colmet-node uses it" if isinstance(err, BlockingIOError) else err.strerror
        log.warning(
            "batches are kept in memory only, unacknowledged ones are lost when colmet-node ends: --spool-dir %s: %s",
            directory,
            why,
        )
        return Outbox(now_ns, None)
    spool = Spool(private, host_name, epoch, options.spool_size, MAX_AGE_S)
    return Outbox(epoch, spool)


def collectors(options: argparse.Namespace) -> list[str]:
    """Return the addresses of the collectors: given, else named with the collector's key, else the default one.

    The list is empty if the option is '' and no key names one: no collector is known yet.
    """
    given: list[str] | None = options.zeromq_uri
    if given and given != [""]:
        return given
    keys = curve.files(options)
    named = [] if keys is None else read_uris(keys.others)
    return named or ([] if given else [DEFAULT_URI])


def addresses(options: argparse.Namespace) -> dict[str, str]:
    """Return the addresses of the collectors, each with the address of its acknowledgements; "" for none.

    Raises:
        ConfigError: a URI cannot be used, or the two options are given in different numbers.
    """
    uris = collectors(options)
    for uri in uris:
        check_target(uri, "--zeromq-uri")
    links = options.zeromq_link_uri
    if links is None:
        links = [link_uri(uri) for uri in uris]
    if len(links) != len(uris) or len(set(uris)) != len(uris):
        raise ConfigError("give --zeromq-link-uri as often as --zeromq-uri, and no --zeromq-uri twice")
    for uri in filter(None, links):
        check_target(uri, "--zeromq-link-uri")
    return dict(zip(uris, links))


def open_uplinks(
    options: argparse.Namespace, host_name: str, times: Times, security: curve.Client | None = None
) -> list[Uplink]:
    """Return the uplinks to all collectors of `addresses`, in this host's order of preference."""
    by_uri = addresses(options)
    dialect = options.wire
    if dialect == AUTO and security is not None:  # no collector of Colmet 0.6 has keys
        dialect = V1
    acknowledged = dialect != COLMET06  # batches of that have no numbers
    if not acknowledged or not all(by_uri.values()):
        log.warning("collectors do not acknowledge: batches under way are lost when one stops")
    if dialect == AUTO and not all(by_uri.values()):
        log.warning(
            "without --zeromq-link-uri a collector cannot be asked what it reads: it gets the format and the tables of "
            "Colmet 0.6; give --wire v1 if it is newer"
        )
    if options.wire == COLMET06 and getattr(options, "enable_nvidia", False):
        log.warning(
            "nvidiastats_default ends a collector of Colmet 0.6.10 that writes HDF5: --wire auto does not "
            "send it there; remove --enable-nvidia or --wire colmet06"
        )
    uplinks: list[Uplink] = []
    # without acknowledgements, queued batches exist nowhere else
    linger_ms = max(options.zeromq_linger, int(times.farewell_s * 1000)) if options.zeromq_linger >= 0 else -1
    with contextlib.ExitStack() as stack:
        for uri in by_preference(host_name, list(by_uri)):
            push = stack.enter_context(contextlib.closing(Push(uri, options.zeromq_hwm, linger_ms, security)))
            link = LinkClient(by_uri[uri], security, push) if acknowledged and by_uri[uri] else None
            uplinks.append(Uplink(uri, push, link, times, time.monotonic(), dialect))
            stack.callback(uplinks[-1].close)
        stack.pop_all()
    return uplinks


class _Sent(NamedTuple):
    """A batch on its way."""

    uplink: Uplink
    again_at: float  # time of the next retry
    is_short: bool  # without descriptions


class NodeLink:
    """Sender of batches until they are acknowledged: new ones at once, others in order at a bounded rate.

    `step` is for one thread only, made by `start`.

    Args:
        uplinks: to the collectors, in order of preference.
        take, wake_fd: return new batches; readable when there are some.
        window: limit of unacknowledged batches on their way.
        rate: of batches that are not new, per second.
        times, requests: intervals and timeouts; answers to the collectors' requests.

    Attributes:
        resent: number of batches sent again.
        false_acknowledgements: batches of this start acknowledged without ever being sent.
    """

    def __init__(
        self,
        host: str,
        outbox: Outbox,
        uplinks: Sequence[Uplink],
        take: Callable[[], list[EncodedBatch]],
        wake_fd: int,
        window: int = 1000,
        rate: float = RATE,
        times: Times | None = None,
        requests: Requests | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.resent = self.false_acknowledgements = 0
        self._host = host
        self._outbox = outbox
        self._uplinks = uplinks
        self._take = take
        self._wake_fd = wake_fd
        self._window = window
        self._window_of_old = max(1, window // 2)
        self._rate = rate
        self._burst = max(1.0, rate / 4)  # batches at once after a quiet time
        self._times = times or Times()
        self._requests = requests or Requests(None)
        self._monotonic = monotonic
        self._outstanding: dict[Key, _Sent] = {}
        self._tries: dict[Key, int] = {}  # of batches sent more than once
        self._most_tries = window
        self._cursor: Key | None = (0, 0)  # the next key to send is not before it; None: none to send
        self._passed: Key | None = None  # the first skipped batch: it was sent in v1 before
        self._decoder = Decoder()
        self._tokens = TokenBucket(rate, self._burst, monotonic)
        self._tokens.use(self._tokens.left() - 1)
        self._looked_at = monotonic()
        self._uplink = uplinks[0]
        self._failures = 0
        self._stopping = False
        self._thread: threading.Thread | None = None

    def counters(self) -> dict[str, int]:
        """Return the counters, by name. From any thread."""
        states = [uplink.state for uplink in self._uplinks]
        return {
            "outstanding": len(self._outstanding),
            "resent": self.resent,
            "collectors": len(states),
            "collectors_there": states.count(UplinkState.THERE),
            "collectors_mute": states.count(UplinkState.MUTE),
            "bad_messages": sum([uplink.bad_messages for uplink in self._uplinks]),
            "acknowledgements_doubted": sum([uplink.doubted for uplink in self._uplinks]),
            "acknowledgements_false": self.false_acknowledgements,
            "descriptions_asked": sum([uplink.asked for uplink in self._uplinks]),
            "duplicates": sum([uplink.duplicates for uplink in self._uplinks]),
            "requests": self._requests.answered,
            "requests_refused": self._requests.refused,
            "defects": self._failures + self._requests.failures,
        }

    # -- the thread --

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._guarded(self._outbox.load)
        while not self._stopping:
            self._guarded(self._wait)
            self._guarded(self.step)
        self._guarded(self._finish)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # a defect must not end the thread
            self._failures += 1
            if powers_of_ten(self._failures):
                log.exception("link: defect failures=%d", self._failures)
            time.sleep(0.1)

    def stop(self, wake: Callable[[], None]) -> bool:
        """Have the thread, woken by `wake`, send its last batches within `farewell_s`; return whether it ended."""
        self._stopping = True
        if self._thread is None:
            return True
        wake()
        self._thread.join(2 * self._times.farewell_s + 1)
        return not self._thread.is_alive()

    def _finish(self) -> None:
        """Send waiting batches while a collector receives them, for `farewell_s` at most."""
        until = self._monotonic() + self._times.farewell_s
        self._tokens.use(self._tokens.left() - self._burst)  # all may be sent at once
        while True:
            self.step()
            now = self._monotonic()
            if not len(self._outbox) or now >= until or not self._uplink.promising(now):
                break
            wait(self._sockets(), (), min(0.05, until - now))

    def _sockets(self) -> list[Socket]:
        return [uplink.link.socket for uplink in self._uplinks if uplink.link is not None]

    def _wait(self) -> None:
        """Wait until there is work. Acknowledgements alone are no hurry: most are read when the next batch comes."""
        if self._is_calm():
            wait([self._wake_fd, self._requests.fd], (), CALM * self._times.ask_s)
            return
        writable = [r.link.socket for r in self._uplinks if r.link is not None and not r.link.connected]
        timeout_s = self._times.ask_s / 2
        if self._cursor is not None:
            if not self._uplink.push.connected:
                writable.append(self._uplink.push.socket)
            elif self._may_send_again() and len(self._outstanding) < self._window_of_old:
                timeout_s = min(timeout_s, self._tokens.wait_s())
        wait([self._wake_fd, self._requests.fd, *self._sockets()], writable, timeout_s)

    def _is_calm(self) -> bool:
        """Return whether all collectors are there and nothing is due but some acknowledgements."""
        return (
            self._cursor is None
            and len(self._outstanding) <= FEW
            and all(uplink.state is UplinkState.THERE and not uplink.is_asked for uplink in self._uplinks)
        )

    # -- the work of a step --

    def step(self) -> None:
        """Do all due work, without waiting."""
        now = self._monotonic()
        try:
            self._listen(now)  # first: acknowledged batches leave the outbox, often empty, before new ones come
        finally:
            self._pass_on(self._take(), now)  # after a defect, too: new batches reach the disk

    def _listen(self, now: float) -> None:
        for uplink in self._uplinks:
            if uplink.notice(now):
                self._take_back(uplink)
            for message in uplink.receive():
                self._handle(uplink, message, now)
        for number, content, uplink in self._requests.answers():
            if uplink.link is not None:
                uplink.link.send(wire.encode(wire.Answer(number, content)))

    def _pass_on(self, entries: Sequence[EncodedBatch], now: float) -> None:
        try:
            if entries:
                self._outbox.add(entries)
            self._choose(now)
            for entry in entries:
                if len(self._outstanding) >= self._window or not self._send(entry, now):
                    self._set_back(entry[:2])
            self._send_waiting(now)
            self._look(now)
        except BaseException:  # unsent batches must not be forgotten
            for entry in entries:
                self._set_back(entry[:2])
            raise

    def _handle(self, uplink: Uplink, message: wire.Message, now: float) -> None:
        if isinstance(message, wire.Ack):
            another = uplink.heard(message, now)
            for one in message.ranges:
                self._acknowledge(uplink, one)
            self._forget_done()
            if another:  # it lacks the batches not acknowledged by the former process
                self._take_back(uplink)
        elif isinstance(message, wire.Describe):
            self._describe(uplink, message.epoch)
        elif isinstance(message, wire.Request):
            self._requests.ask(message.number, message.content, uplink)
        else:
            uplink.bad_messages += 1

    def _acknowledge(self, uplink: Uplink, one: wire.Range) -> None:
        """Remove acknowledged batches that this collector can have; count the others as doubted, and keep them."""
        for first, last in uplink.sent_of(one):
            self._outbox.acknowledge(one.epoch, first, last)
            uplink.carried(one.epoch, first, last)
        left = self._outbox.count_in(*one)
        if not left:
            return
        uplink.doubted += left
        unsent = self._outbox.unsent_of(*one)
        before, self.false_acknowledgements = self.false_acknowledgements, self.false_acknowledgements + unsent
        if powers_of_ten(self.false_acknowledgements, before):
            log.warning(
                "collector acknowledges batches that were never sent, they are kept: does another host pose as the "
                "collector? Set up keys: collector=%s batches=%d",
                *(uplink.uri, self.false_acknowledgements),
            )

    def _forget_done(self) -> None:
        for key in [key for key in self._outstanding if key not in self._outbox]:
            del self._outstanding[key]
            self._tries.pop(key, None)

    def _set_back(self, key: Key) -> None:
        """Have a batch sent when its turn comes."""
        self._cursor = key if self._cursor is None else min(key, self._cursor)

    def _take_back(self, uplink: Uplink, only_short: bool = False) -> None:
        """Have the unacknowledged batches of an uplink sent again: all, or those without descriptions."""
        for key, sent in list(self._outstanding.items()):
            if sent.uplink is uplink and (sent.is_short or not only_short):
                del self._outstanding[key]
                self._set_back(key)

    def _describe(self, uplink: Uplink, epoch: int) -> None:
        """Send in full what a collector may have refused, as it lacks a description."""
        if epoch != self._outbox.epoch:
            return
        uplink.asked += 1
        if powers_of_ten(uplink.asked):
            log.warning(
                "collector asks for descriptions of tables, batches are sent again in full: collector=%s times=%d",
                *(uplink.uri, uplink.asked),
            )
        uplink.forget_descriptions()
        self._take_back(uplink, only_short=True)

    def _choose(self, now: float) -> None:
        """Choose the uplink: the present one while usable, or a preferred one that has been there for `back_s`."""
        usable = [uplink for uplink in self._uplinks if uplink.usable(now)]
        usable = [uplink for uplink in usable if uplink.state is UplinkState.THERE] or usable
        if not usable:
            return
        best = usable[0]
        if self._uplink not in usable or (
            best is not self._uplink
            and self._uplinks.index(best) < self._uplinks.index(self._uplink)
            and now - best.since >= self._times.back_s
        ):
            if best is not self._uplink:
                log.warning("collector replaces the other: collector=%s other=%s", best.uri, self._uplink.uri)
            self._uplink = best

    def _send(self, entry: EncodedBatch, now: float) -> bool:
        """Send a batch over the chosen uplink; return False if not possible now."""
        uplink = self._uplink
        key = entry[:2]
        dialect = uplink.dialect
        if not dialect or not uplink.usable(now):
            return False
        is_short = dialect == V1 and bool(entry.schemas) and uplink.described(entry.schemas)
        message = entry.message if is_short else entry.full
        if dialect == COLMET06:
            try:
                (batch,) = self._decoder.decode(message).batches
            except WireError:  # wrong bytes from the disk, or a defect
                self._outbox.drop_damaged(key)
                return True
            message = colmet06.encode(batch, UNASKED if uplink.wire == AUTO else ())
        if message and not uplink.push.send(message):  # empty: Colmet 0.6 has no such tables
            return False
        self._outbox.sent(key)
        uplink.sent(*key)
        if not is_short:
            uplink.carry(key, entry.schemas)
        if uplink.state is UplinkState.MUTE:
            self._outbox.release(key)
            return True
        tries = self._tries.get(key, 0)
        pause_s = growing_pause_s(tries + 1, self._times.resend_s, self._times.resend_most_s)
        self._outstanding[key] = _Sent(uplink, now + pause_s, is_short)
        return True

    def _may_send_again(self) -> bool:
        """Return whether old batches may be sent: the collector's batches and its dialect must be known first."""
        return self._uplink.state in (UplinkState.THERE, UplinkState.MUTE) and bool(self._uplink.dialect)

    def _send_waiting(self, now: float) -> None:
        """Send batches that are not new, in order, at a bounded rate."""
        if not self._may_send_again():
            return
        is_v1 = self._uplink.dialect == V1
        if is_v1 and self._passed is not None:
            self._set_back(self._passed)
            self._passed = None
        while self._cursor is not None and self._tokens.left() >= 1 and len(self._outstanding) < self._window_of_old:
            key = self._outbox.following(self._cursor)
            if key is None:
                self._cursor = None
                return
            if not is_v1 and self._outbox.was_sent(key):
                # a collector of this version may have it, and cannot recognise it in the other dialect
                self._passed = key if self._passed is None else min(key, self._passed)
            elif key not in self._outstanding:
                try:
                    message = self._outbox.message(key)
                except OSError:  # the spool has logged it; in a moment it may be readable
                    self._cursor = key
                    self._tokens.use(self._tokens.left() + self._rate)  # rest for a second
                    return
                if message is not None:
                    if not self._send(EncodedBatch(*key, 0, message), now):
                        self._cursor = key
                        return
                    self.resent += 1
                    self._tokens.use(1 + len(message) // TOKEN_BYTES)
            self._cursor = key[0], key[1] + 1

    def _look(self, now: float) -> None:
        """Do periodic work: send Hellos, detect dead collectors, re-send and expire batches."""
        waiting = bool(self._outstanding)
        for uplink in self._uplinks:
            if uplink.look(now):
                if uplink.state is UplinkState.MUTE:  # all sent batches were received, short ones maybe refused
                    self._take_back(uplink, only_short=True)
                    for key in [key for key, sent in self._outstanding.items() if sent.uplink is uplink]:
                        self._outbox.release(key)
                    self._forget_done()
                else:
                    self._take_back(uplink)
            if uplink.hello(now, waiting and uplink is self._uplink):
                ranges = tuple([wire.Range(*one) for one in self._outbox.ranges()[: wire.MAX_RANGES]])  # the oldest
                uplink.say(wire.Hello(self._host, self._outbox.epoch, self._outbox.coming, __version__, ranges), now)
        if now - self._looked_at >= self._times.ask_s / 2:
            self._looked_at = now
            self._outbox.flush()
            self._outbox.drop_beyond()
            epochs = frozenset([epoch for epoch, _, _ in self._outbox.ranges()])
            for uplink in self._uplinks:
                uplink.forget_sent(epochs)
            for key, sent in [(key, sent) for key, sent in self._outstanding.items() if now >= sent.again_at]:
                del self._outstanding[key]
                if sent.is_short:
                    sent.uplink.forget_descriptions()
                self._tries[key] = self._tries.get(key, 0) + 1
                self._set_back(key)
            self._forget_done()
            if len(self._tries) > self._most_tries:  # of some acknowledged before their retry
                self._tries = {key: tries for key, tries in self._tries.items() if key in self._outbox}
                self._most_tries = 2 * len(self._tries) + self._window
