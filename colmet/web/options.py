"""The command line of colmet-web, and its checks before anything starts."""

from __future__ import annotations

import argparse
import contextlib
import glob
import grp
import logging
import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple, Union

from colmet.common.config import cli
from colmet.common.daemon import startup
from colmet.common.daemon.metrics_http import ListenAddress, listen_address, resolve
from colmet.common.errors import ConfigError
from colmet.common.text import how_to_install
from colmet.stored import sources

log = logging.getLogger(__name__)

ADMIN_GROUP = "admin"
LIBRARIES = ("fastapi", "uvicorn")
MAX_PATH_BYTES = 107  # of a Unix socket (sun_path, with its end)
_SIGN_OUT = re.compile(r"(?:https?://[A-Za-z0-9]|/(?!/))[!-~]{0,2000}")
_HEADER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")


class UnixAddress(NamedTuple):
    """The path of a Unix socket to listen on."""

    path: str


Address = Union[ListenAddress, UnixAddress]


def build_parser(_backends: Sequence[object] = ()) -> cli.Parser:
    """Return the command line of colmet-web."""
    parser = cli.Parser(
        prog="colmet-web",
        description="Serve jobs and nodes as JSON and as a page. It reads the files and the archive of a collector, "
        "and the collector's feed of what arrives.",
    )
    startup.add_common_options(parser)
    access = parser.add_argument_group("address and access")
    access.add_argument(
        "--listen",
        metavar="[HOST:]PORT|unix:PATH",
        type=http_address,
        default=ListenAddress("127.0.0.1", 8080),
        help="serve at http://HOST:PORT/; a port alone: for this machine only; unix:PATH: for a proxy (default: 8080)",
    )
    access.add_argument(
        "--users",
        metavar="FILE",
        help="admit the users in this file (see `colmet access`); this, --open or --user-header is required",
    )
    access.add_argument("--open", action="store_true", help="show everything to everyone, without a login")
    access.add_argument(
        "--user-header",
        metavar="NAME",
        type=header_name,
        help="admit the user named by the proxy in this header, such as X-Remote-User; for --listen unix:PATH",
    )
    access.add_argument(
        "--sign-out-url",
        metavar="URL",
        type=sign_out_url,
        help="let users sign out at this address of the proxy, such as /oauth2/sign_out; for --user-header (default: "
        "the page offers no sign-out there)",
    )
    access.add_argument(
        "--admin-group",
        metavar="NAME",
        default=ADMIN_GROUP,
        help="show all jobs to members of this group, in --users or on this machine; others see their own (default: "
        "%(default)s)",
    )
    access.add_argument(
        "--leaders",
        metavar="FILE",
        help="show the archived jobs of a project to its leaders, too: lines of PROJECT: USER, USER; coordinators of "
        "Slurm's accounts are leaders without it",
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--collector-config",
        metavar="FILE",
        help=f"read the store and the archive that this configuration of a collector names; '': none (default: "
        f"{sources.CONFIG}, if it exists)",
    )
    data.add_argument(
        "--feed", metavar="PATH", help="socket of the collector's feed; '': none (default: the collector's default)"
    )
    data.add_argument(
        "--memory",
        metavar="SIZE",
        type=cli.size_bytes,
        default=256 << 20,
        help="keep recent rows for charts in at most this much memory (default: 256M)",
    )
    data.add_argument(
        "--gridengine",
        action="store_true",
        help="serve memory by host and job from Grid Engine's qhost and qstat; at /qhost and /qstat, for `colmet mem` "
        "and qmemview (default: from the nodes)",
    )
    data.add_argument(
        "--gridengine-xml",
        metavar="DIR",
        help=cli.Rare("read DIR/qhost_qmem.xml and DIR/qstat_qmem.xml instead of running the commands"),
    )
    data.add_argument(
        "--gridengine-encoding",
        metavar="NAME",
        default="utf-8",
        help=cli.Rare("encoding of their output or of these files, such as iso-8859-15 (default: %(default)s)"),
    )
    parser.require("--user-header", "--sign-out-url")
    return parser


def http_address(text: str) -> Address:
    """Convert [HOST:]PORT or unix:PATH, an option type."""
    kind, colon, path = text.partition(":")
    if kind != "unix" or not colon:
        return listen_address(text)
    if not path.startswith("/") or "\0" in path or len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise argparse.ArgumentTypeError(
            f"{text!r:.200}: after unix: give an absolute path of at most {MAX_PATH_BYTES} bytes"
        )
    return UnixAddress(path)


def header_name(text: str) -> str:
    """Check the name of a header that clients do not set themselves, an option type."""
    if not _HEADER_NAME.fullmatch(text) or text.lower() in ("authorization", "cookie", "host", "x-forwarded-for"):
        raise argparse.ArgumentTypeError(f"{text!r:.80}: give the name of a header of its own, such as X-Remote-User")
    return text


def sign_out_url(text: str) -> str:
    """Check the address of a sign-out, an option type."""
    if not _SIGN_OUT.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r:.200}: give an address with http:// or https://, or a path of the proxy, such as /oauth2/sign_out"
        )
    return text


def check(options: argparse.Namespace) -> None:
    """Check that colmet-web can work with these options; ConfigError names the wrong one."""
    is_unix = isinstance(options.listen, UnixAddress)
    if options.user_header is not None and not is_unix:
        raise ConfigError(
            "--user-header: every client of a TCP port could set this header; give --listen unix:PATH, which the proxy "
            "alone can reach"
        )
    if sum(map(bool, (options.users, options.open, options.user_header))) != 1:
        raise ConfigError(
            "give either --users FILE, which `colmet access` writes, or --open, which shows everything to everyone, "
            "or, behind a proxy, --user-header NAME"
        )
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"colmet-web requires the Python modules {' and '.join(missing)}: {how_to_install(*missing)}")
    for option, path in (("--users", options.users), ("--leaders", options.leaders)):
        if path is not None:
            _check_readable(option, path)
    if options.gridengine_xml is not None and not os.path.isdir(options.gridengine_xml):
        raise ConfigError(f"--gridengine-xml {options.gridengine_xml}: not a directory")
    try:
        b"a".decode(options.gridengine_encoding)  # some encodings are not of text
    except (LookupError, ValueError, TypeError) as err:
        raise ConfigError(
            f"--gridengine-encoding {options.gridengine_encoding!r}: not the name of an encoding, such as utf-8 or "
            "iso-8859-15"
        ) from err
    if not is_unix:
        resolve(options.listen, "--listen")


def _check_readable(option: str, path: str) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except (OSError, ValueError) as err:
        what = f"{option} {path!r}: {getattr(err, 'strerror', None) or err}"
        raise ConfigError(what + ("; 'colmet access' makes it" if option == "--users" else "")) from err
    if not os.path.isfile(path):
        raise ConfigError(f"{option} {path!r}: not a regular file")


def store_of(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options of the collector whose store is read; ConfigError if its file cannot be used."""
    path = options.collector_config
    if path is None:
        path = sources.CONFIG if os.path.exists(sources.CONFIG) else ""
    return sources.configured(path) if path else argparse.Namespace(hdf5_filepath=None, elastic_host=None)


def warn_of_readers(options: argparse.Namespace, store: argparse.Namespace) -> None:
    """Warn if users can see rows of others without the interface."""
    if options.open:
        return
    prefix = store.hdf5_filepath
    paths = sorted(glob.glob(f"{glob.escape(prefix)}*.hdf5"))[-1:] if prefix else []
    for path in paths:
        if _is_for_all(path):
            log.warning(
                "all users of this machine can read the stored files without a login: chmod o-r %s; set UMask=0027 for "
                "the collector",
                path,
            )
    with contextlib.suppress(KeyError):
        members = grp.getgrnam(options.admin_group).gr_mem
        if options.admin_group == ADMIN_GROUP and members:
            log.warning(
                "members of this machine's group %s see everybody's jobs: group=%s members=%d; name another group with "
                "--admin-group if they should not",
                *(ADMIN_GROUP, ADMIN_GROUP, len(members)),
            )


def _is_for_all(path: str) -> bool:
    """Return whether every user of this machine can read a file, through all directories above it."""
    try:
        if not os.stat(path).st_mode & 0o004:
            return False
        above = os.path.dirname(os.path.realpath(path))
        while os.stat(above).st_mode & 0o001:
            if above == "/":
                return True
            above = os.path.dirname(above)
    except OSError:
        pass
    return False
