"""The command line of colmet-collector."""

from __future__ import annotations

from collections.abc import Sequence

from colmet.collector import web_child
from colmet.collector.backend import OutputBackend
from colmet.common.config import cli
from colmet.common.daemon import control, metrics_http, startup
from colmet.common.transport import authenticator


def _rows(text: str) -> int:
    """Convert a number of rows, an option type; 0 is 1, as in Colmet 0.6."""
    return max(1, cli.whole_number(0)(text))


# Options of Colmet 0.6: its command lines may abbreviate them.
OPTIONS_06 = frozenset(
    (
        *("--buffer-size", "--elastic-host", "--elastic-index-prefix", "--enable-stdout-backend", "--hdf5-complevel"),
        *("--hdf5-complib", "--hdf5-filepath", "--help", "--http-credentials", "--no-check-certificates"),
        *("--sample-period", "--verbose", "--version", "--zeromq-bind-uri", "--zeromq-hwm", "--zeromq-linger"),
    )
)


def build_parser(outputs: Sequence[type[OutputBackend]]) -> cli.Parser:
    """Return the command line of colmet-collector."""
    parser = cli.Parser(
        prog="colmet-collector",
        description="Receive the samples of all nodes, also of Colmet 0.6, and write them to at least one output. "
        "SIGHUP starts the next HDF5 file and reads --config again.",
    )
    parser.older = OPTIONS_06
    startup.add_common_options(parser)
    _add_receiving(parser.add_argument_group("reception"))
    _add_journal(parser.add_argument_group("journal"))
    for output in outputs:
        output.add_options(parser.add_argument_group(f"output: {output.name}"))
    _add_writing(parser.add_argument_group("all outputs"))
    web_child.add_options(parser.add_argument_group("JSON interface and page"))
    daemon = parser.add_argument_group("how colmet-collector runs")
    control.add_options(daemon, "collector")
    metrics_http.add_options(daemon)
    return parser


def _add_receiving(receiving: cli.Options) -> None:
    receiving.add_argument(
        "--zeromq-bind-uri",
        metavar="URI",
        default="tcp://0.0.0.0:5556",
        help="listen for nodes here (default: %(default)s)",
    )
    receiving.add_argument(
        "--zeromq-link-bind-uri",
        metavar="URI",
        help=cli.Rare(
            "listen here for nodes, to acknowledge batches; '': no acknowledgements, and batches on their way are "
            "lost when the collector stops (default: the next port)"
        ),
    )
    startup.add_queue_options(receiving)
    authenticator.add_options(receiving)


def _add_journal(journal: cli.Options) -> None:
    journal.add_argument(
        "--journal-dir",
        metavar="DIR",
        help="keep received data in this directory until all outputs have it; '': in memory only (default: "
        "PATH.journal beside the HDF5 file; without one, memory)",
    )
    journal.add_argument(
        "--journal-size",
        metavar="SIZE",
        type=cli.size_bytes,
        default=4 << 30,
        help=cli.Rare("limit of the journal; beyond it the oldest records are dropped (default: 4G)"),
    )
    journal.add_argument(
        "--check-journal",
        action="store_true",
        help="print the content of the journal, and exit; with the position of each output; status 1: it is damaged",
    )


def _add_writing(writing: cli.Options) -> None:
    writing.add_argument(
        "-s",
        "--sample-period",
        metavar="S",
        type=cli.positive_seconds,
        default=5.0,
        help="write rows after at most S seconds; HDF5 and the archive 12 S, where that saves work "
        "(default: %(default)g)",
    )
    writing.add_argument(
        "--buffer-size",
        metavar="N",
        type=_rows,
        default=100,
        help="write rows when N of them wait (default: %(default)s)",
    )
