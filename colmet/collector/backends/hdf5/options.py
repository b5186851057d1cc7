"""The options that begin with --hdf5."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from colmet.collector.backends.hdf5.library import tables
from colmet.collector.backends.hdf5.rotation import SUFFIX
from colmet.common.config import cli
from colmet.common.config.cli import Options, did_you_mean
from colmet.common.errors import ConfigError

COMPLIBS = ("zlib", "lzo", "bzip2", "blosc", "blosc2")
MAX_DELAY_S = 60.0

_ROTATE = re.compile(r"([1-9][0-9]{0,8})(m|h|d|M|G|T)", re.ASCII)
_PERIODS_S = {"m": 60, "h": 3600, "d": 86400}
_SIZES = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def rotation(text: str) -> tuple[str, int]:
    """Parse the maximum period or size of a file, as ``("s", seconds)`` or ``("bytes", bytes)``: an option type."""
    found = _ROTATE.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a period (30m, 6h, 1d) nor a size (500M, 10G, 1T; M is 2^20 bytes)"
        )
    count, unit = int(found.group(1)), found.group(2)
    return ("s", count * _PERIODS_S[unit]) if unit in _PERIODS_S else ("bytes", count * _SIZES[unit])


def complib(text: str) -> str:
    """Check and return the name of a compression library: an option type."""
    if text in COMPLIBS or text in tables.filters.all_complibs:
        return text
    codecs = [name for name in tables.filters.all_complibs if ":" in name]
    known = [*COMPLIBS, *codecs]
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}{did_you_mean(text, known)}")


def add_options(parser: Options) -> None:
    """Declare the options."""
    parser.add_argument(
        "--hdf5-filepath",
        metavar="PATH",
        help="write to PATH.<epoch seconds>.hdf5; to this one file if PATH ends in .hdf5",
    )
    parser.add_argument(
        "--hdf5-rotate",
        metavar="PERIOD_OR_SIZE",
        type=rotation,
        action="append",
        default=[],
        help="start a new file every 30m, 6h or 1d, or at 500M or 10G; in UTC; repeatable (default: at start and "
        "SIGHUP)",
    )
    parser.add_argument(
        "--hdf5-keep",
        metavar="PERIOD",
        type=cli.period,
        default=0,
        help=cli.Rare(
            "remove files whose last row is older than this: 90d, 52w, 2y; after each start and rotation, never the "
            "file being written (default: keep all)"
        ),
    )
    parser.add_argument(
        "--hdf5-complevel",
        metavar="0-9",
        type=int,
        choices=range(10),
        default=0,
        help=cli.Rare("compression level (default: %(default)s)"),
    )
    parser.add_argument(
        "--hdf5-complib",
        metavar="LIBRARY",
        type=complib,
        default="zlib",
        help=cli.Rare(
            f"compression library: {', '.join(COMPLIBS)}, or one with a codec, as PyTables names it (blosc:lz4); "
            "h5py needs plug-ins for others than zlib (default: %(default)s)"
        ),
    )
    parser.require("--hdf5-filepath", "--hdf5-")


def check(options: argparse.Namespace) -> Mapping[str, int]:
    """Return period ("s") and size ("bytes") of --hdf5-rotate; ConfigError for options that cannot work here."""
    path = options.hdf5_filepath
    if not path:
        raise ConfigError("--hdf5-filepath is empty; give a path, e.g. /var/lib/colmet/colmet")
    if tables.which_lib_version(options.hdf5_complib.partition(":")[0]) is None:
        there = ", ".join([lib for lib in COMPLIBS if tables.which_lib_version(lib) is not None])
        raise ConfigError(
            f"--hdf5-complib {options.hdf5_complib}: the PyTables installed here lacks it; it has {there}"
        )
    rotate = dict(options.hdf5_rotate)
    if len(rotate) < len(options.hdf5_rotate):
        raise ConfigError("--hdf5-rotate: give one period, one size, or one of each")
    if rotate and path.endswith(SUFFIX):
        raise ConfigError(
            f"--hdf5-rotate: {path} ends in {SUFFIX}, so it is the one file; each needs a name "
            f"of its own: give --hdf5-filepath {path[: -len(SUFFIX)]}, files are then named by their time"
        )
    if options.hdf5_keep and path.endswith(SUFFIX):
        raise ConfigError(
            f"--hdf5-keep: {path} ends in {SUFFIX}, so it is the one file, which cannot be removed: give "
            f"--hdf5-filepath {path[: -len(SUFFIX)]} and --hdf5-rotate 1d; old files are then removed"
        )
    return rotate
