"""colmet-collector: the command line, and the wiring from the receiver to the outputs."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections.abc import Sequence

from colmet.collector.backend import OutputBackend
from colmet.collector.backends import NAMES
from colmet.collector.buffer import MAX_BUFFER_BYTES, Buffer, Outlet
from colmet.collector.receiver import Receiver
from colmet.common import cli
from colmet.common.errors import ConfigError
from colmet.common.transport import Pull

log = logging.getLogger(__name__)

# Messages, or rows, taken in before the buffer and the signals are looked at again.
BURST = 10_000
REPORT_S = 3600.0
# At the end: how long messages that have arrived are still taken in.
LAST_RECEIVE_S = 10.0

# Options of Colmet 0.6 whose outputs are still to come.
LATER = {
    "Elasticsearch": (
        ("--elastic-host",),
        ("--elastic-index-prefix",),
        ("-P", "--http-credentials"),
        ("--no-check-certificates",),
    ),
}


def build_parser(outputs: Sequence[type[OutputBackend]]) -> argparse.ArgumentParser:
    """The command line of colmet-collector."""
    parser = cli.Parser(
        prog="colmet-collector",
        description="Receive what colmet-node measures on every node, and write it. Nodes of Colmet 0.6 may send to "
        "it too. At least one output has to be chosen. SIGHUP starts the next HDF5 file.",
    )
    cli.add_common_options(parser)
    parser.add_argument(
        "--zeromq-bind-uri",
        metavar="URI",
        default="tcp://0.0.0.0:5556",
        help="where to listen for nodes (default: %(default)s)",
    )
    parser.add_argument(
        "-s",
        "--sample-period",
        metavar="S",
        type=cli.positive_seconds,
        default=5.0,
        help="seconds that rows may wait before they are written (default: %(default)g)",
    )
    parser.add_argument(
        "--buffer-size",
        metavar="N",
        type=cli.whole_number(1),
        default=100,
        help="rows that wait before they are written at once (default: %(default)s)",
    )
    for output in outputs:
        output.add_options(parser.add_argument_group(f"output: {output.name}"))
    for part, options in LATER.items():
        for names in options:
            parser.add_argument(*names, action=cli.Later, part=f"the {part} output")
    return parser


class Collector:
    """Receives, buffers, writes.

    Args:
        pull: where messages come in.
        outputs: opened.
        max_rows: rows that are buffered before they are written.
        max_age_s: how long rows are buffered.
    """

    def __init__(self, pull: Pull, outputs: Sequence[OutputBackend], max_rows: int, max_age_s: float) -> None:
        self._pull = pull
        self._receiver = Receiver()
        self._outlets = [Outlet(output) for output in outputs]
        self._buffer = Buffer(self._outlets, max_rows, max_age_s)
        self._report_at = time.monotonic() + REPORT_S
        self._reported: tuple[str, ...] = ()

    def run(self, signals: cli.Signals) -> None:
        """Work until SIGTERM or SIGINT; then write what is there."""
        self._pull.wake_on(signals.fd)
        while not signals.stop_wanted():
            self._pull.wait(self._buffer.delay_s())
            signals.drain()
            self._receive()
            if signals.take(signal.SIGHUP):
                self._buffer.flush()
                self._reopen()
            elif self._buffer.due:
                self._buffer.flush()
            else:
                self._buffer.retry()
            if time.monotonic() >= self._report_at:
                self._report()
        # nodes that go on sending must not keep it from ending
        until = time.monotonic() + LAST_RECEIVE_S
        while self._receive() and time.monotonic() < until:
            self._buffer.flush()
        self._buffer.flush(last_try=True)
        self._report()
        log.info("stopping")

    def _receive(self) -> bool:
        """Take in what is there, up to a bound; whether it was reached and there may be more."""
        for _ in range(BURST):
            received = self._pull.receive()
            if received is None:
                return False
            self._buffer.add(self._receiver.take(*received))
            if self._buffer.rows >= BURST or self._buffer.size_bytes >= MAX_BUFFER_BYTES:
                break
        return True

    def _reopen(self) -> None:
        for outlet in self._outlets:
            try:
                outlet.output.reopen()
            except ConfigError as err:
                log.error("cannot start the next file output=%s: %s", outlet.output.name, err)

    def _report(self) -> None:
        """Log the account of the senders, loudly where something is wrong that was not told before."""
        lines = tuple(self._receiver.report())
        wrong = lines[1:] != self._reported[1:] and len(lines) > 1
        for line in lines:
            log.log(logging.WARNING if wrong else logging.INFO, "%s", line)
        for outlet in self._outlets:
            log.log(
                logging.WARNING if outlet.dropped else logging.INFO,
                "output %s written=%d waiting=%d dropped=%d",
                outlet.output.name,
                outlet.written,
                outlet.waiting,
                outlet.dropped,
            )
        self._reported = lines
        self._report_at = time.monotonic() + REPORT_S


def run(options: argparse.Namespace, classes: Sequence[type[OutputBackend]]) -> None:
    """Open the outputs, bind, and work until a signal ends it.

    Raises:
        ConfigError: the options ask for what cannot be done; nothing is left half started.
    """
    outputs = [output for cls in classes if (output := cls.from_options(options)) is not None]
    if not outputs:
        raise ConfigError("no output chosen; give --hdf5-filepath PATH or --enable-stdout-backend")
    limit = cli.raise_open_file_limit()
    if limit < 4096:
        log.warning("limit on open files is %d: fewer nodes than that can connect; raise it (LimitNOFILE=)", limit)
    # bound first: a second collector started by mistake then stops before it touches the first one's file
    pull = Pull(options.zeromq_bind_uri, options.zeromq_hwm)
    try:
        with cli.Signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)) as signals:
            try:
                for output in outputs:
                    output.open()
                cli.tune_garbage_collector()
                log.info("listening uri=%s outputs=%s", pull.uri, ",".join(output.name for output in outputs))
                Collector(pull, outputs, options.buffer_size, options.sample_period).run(signals)
            finally:
                for output in outputs:
                    output.close()
    finally:
        pull.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``colmet-collector``; the exit status."""
    return cli.run_daemon(NAMES, build_parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
