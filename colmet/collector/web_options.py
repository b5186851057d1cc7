"""Options of the JSON interface, and their checks before its process starts."""

from __future__ import annotations

import argparse
import contextlib
import glob
import grp
import ipaddress
import logging
import os
import pwd
import re
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple, Union

from colmet.common.errors import ConfigError
from colmet.common.runtime import cli
from colmet.common.runtime.configuration import require
from colmet.common.runtime.installation import how_to_install
from colmet.common.runtime.metrics_http import ListenAddress, cannot_listen, listen_address, resolve

log = logging.getLogger(__name__)

Proxy = Union[ipaddress.IPv4Network, ipaddress.IPv6Network, int]

SOCKET = "COLMET_WEB_SOCKET"  # the environment variable with the path of the service's socket
ADMIN_GROUP = "admin"
LIBRARIES = ("fastapi", "uvicorn")
# files read by the process, apart from stored data
_READ = (
    *("config", "http_users", "http_leaders", "http_tls_cert", "http_tls_key", "http_credentials"),
    *("elastic_api_key_file", "elastic_ca_file", "elastic_client_cert", "elastic_client_key"),
)
MAX_PATH_BYTES = 107  # of a Unix socket (sun_path, with its end)
_SIGN_OUT = re.compile(r"(?:https?://[A-Za-z0-9]|/(?!/))[!-~]{0,2000}")
_HEADER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")


class UnixAddress(NamedTuple):
    """The path of a Unix socket to listen on."""

    path: str


def add_options(parser: cli.Options) -> None:
    """Declare the options for the JSON interface's address, users and content."""
    parser.add_argument(
        "--http-listen",
        metavar="[HOST:]PORT|unix:PATH",
        type=http_address,
        help="serve jobs and nodes as JSON and as a page; at http://HOST:PORT/; a port alone: for this machine only; "
        "unix:PATH: for a proxy (default: off)",
    )
    parser.add_argument(
        "--http-users",
        metavar="FILE",
        help="admit the users in this file (see `colmet access`); --http-listen requires this or --http-open",
    )
    parser.add_argument("--http-open", action="store_true", help="show everything to everyone, without a login")
    parser.add_argument(
        "--http-user-header",
        metavar="NAME",
        type=header_name,
        help=cli.Rare(
            "admit the user named by the proxy in this header, such as X-Remote-User; for --http-listen unix:PATH"
        ),
    )
    parser.add_argument(
        "--http-sign-out-url",
        metavar="URL",
        type=sign_out_url,
        help=cli.Rare(
            "let the page's users sign out at this address of the proxy, such as /oauth2/sign_out; for "
            "--http-user-header (default: the page offers no sign-out there)"
        ),
    )
    parser.add_argument(
        "--http-admin-group",
        metavar="NAME",
        default=ADMIN_GROUP,
        help=cli.Rare(
            "show all jobs to members of this group, in --http-users or on this machine; others see their own "
            "(default: %(default)s)"
        ),
    )
    parser.add_argument(
        "--http-leaders",
        metavar="FILE",
        help=cli.Rare(
            "show the archived jobs of a project to its leaders, too: lines of PROJECT: USER, USER; coordinators of "
            "Slurm's accounts are leaders without it"
        ),
    )
    parser.add_argument("--http-tls-cert", metavar="FILE", help="serve https with this certificate chain (PEM)")
    parser.add_argument("--http-tls-key", metavar="FILE", help=cli.Rare("the key of --http-tls-cert (PEM)"))
    parser.add_argument(
        "--http-trusted-proxy",
        metavar="PROXY",
        action="append",
        type=trusted_proxy,
        help=cli.Rare(
            "trust X-Forwarded-For from this proxy: an address, a network, or the user of a proxy on this machine"
        ),
    )
    parser.add_argument(
        "--http-memory",
        metavar="SIZE",
        type=cli.size_bytes,
        default=256 << 20,
        help=cli.Rare("keep recent rows for charts in at most this much memory (default: 256M)"),
    )
    parser.add_argument(
        "--http-memory-time",
        metavar="S",
        type=cli.positive_seconds,
        default=3600.0,
        help=cli.Rare("keep them for S seconds (default: %(default)g)"),
    )
    parser.add_argument(
        "--gridengine",
        action="store_true",
        help="serve memory by host and job from Grid Engine's qhost and qstat; at /qhost and /qstat, for `colmet "
        "mem` and qmemview (default: from the nodes)",
    )
    parser.add_argument(
        "--gridengine-period",
        metavar="S",
        type=cli.positive_seconds,
        default=10.0,
        help=cli.Rare("run these commands every S seconds (default: %(default)g)"),
    )
    parser.add_argument(
        "--gridengine-xml",
        metavar="DIR",
        help=cli.Rare("read DIR/qhost_qmem.xml and DIR/qstat_qmem.xml instead of running the commands"),
    )
    parser.add_argument(
        "--gridengine-encoding",
        metavar="NAME",
        default="utf-8",
        help=cli.Rare("encoding of their output or of these files, such as iso-8859-15 (default: %(default)s)"),
    )
    require(parser, "--http-listen", "--http-", "--gridengine", "--gridengine-")


def http_address(text: str) -> ListenAddress | UnixAddress:
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
    if not _HEADER_NAME.fullmatch(text) or text.lower() in ("authorization", "host", "x-forwarded-for"):
        raise argparse.ArgumentTypeError(f"{text!r:.80}: give the name of a header of its own, such as X-Remote-User")
    return text


def sign_out_url(text: str) -> str:
    """Check the address of a sign-out, an option type."""
    if not _SIGN_OUT.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r:.200}: give an address with http:// or https://, or a path of the proxy, such as /oauth2/sign_out"
        )
    return text


def trusted_proxy(text: str) -> Proxy:
    """Convert an address, a network, or the name of a user of this machine to its number, an option type."""
    try:
        found = ipaddress.ip_network(text, strict=False)
    except ValueError:
        try:
            return pwd.getpwnam(text).pw_uid
        except KeyError:
            raise argparse.ArgumentTypeError("give an address, a network or a user of this machine") from None
    if found.is_loopback:
        raise argparse.ArgumentTypeError(
            "every user of this machine has this address; give the user that the proxy runs as, such as www-data"
        )
    return found


def service_of(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> str:
    """Return the path of the socket of the JSON interface's service; "" if the interface is a child process.

    The service has a user of its own, a member of this process's group: it can only use files readable by this group. A
    warning names an unreadable file.
    """
    path = environment.get(SOCKET, "")
    if not path or options.http_listen is None or not os.path.exists(path):
        return ""
    for file in filter(None, [getattr(options, option, None) for option in _READ]):
        if not _is_for_group(file):
            log.warning(
                "JSON interface runs as the collector's user, which can write the store: the group of the collector "
                "cannot read %s; chgrp colmet %s; chmod 640 %s",
                *(file, file, file),
            )
            return ""
    return path


def warn_of_readers(options: argparse.Namespace) -> None:
    """Warn if users can see rows of others without the interface."""
    if options.http_listen is None or options.http_open:
        return
    prefix = getattr(options, "hdf5_filepath", None)
    paths = sorted(glob.glob(f"{glob.escape(prefix)}*.hdf5"))[-1:] if prefix else []
    for path in paths:
        if _is_for_all(path):
            log.warning(
                "all users of this machine can read the stored files without a login: chmod o-r %s; set UMask=0027 for "
                "the collector",
                path,
            )
    with contextlib.suppress(KeyError):
        members = grp.getgrnam(options.http_admin_group).gr_mem
        if options.http_admin_group == ADMIN_GROUP and members:
            log.warning(
                "members of this machine's group %s see everybody's jobs: group=%s members=%d; name another group with "
                "--http-admin-group if they should not",
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


def _is_for_group(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return bool(status.st_mode & 0o004 or (status.st_gid == os.getegid() and status.st_mode & 0o040))


def check(options: argparse.Namespace) -> None:
    """Check that the JSON interface can work with these options; ConfigError names the wrong one."""
    if options.http_listen is None:
        return
    is_unix = isinstance(options.http_listen, UnixAddress)
    if options.http_sign_out_url is not None and options.http_user_header is None:
        raise ConfigError(
            "--http-sign-out-url has no effect without --http-user-header: the page itself ends the logins of "
            "--http-users"
        )
    if options.http_user_header is not None and not is_unix:
        raise ConfigError(
            "--http-user-header: every client of a TCP port could set this header; give --http-listen unix:PATH, which "
            "the proxy alone can reach"
        )
    if sum(map(bool, (options.http_users, options.http_open, options.http_user_header))) != 1:
        raise ConfigError(
            "--http-listen: give either --http-users FILE, which `colmet access` writes, or --http-open, which shows "
            "everything to everyone, or, behind a proxy, --http-user-header NAME"
        )
    if is_unix and options.http_tls_cert:
        raise ConfigError("--http-tls-cert has no effect on a Unix socket; the proxy has the certificate")
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"--http-listen requires the Python modules {' and '.join(missing)}: {how_to_install(*missing)}"
        )
    for name in ("http_users", "http_leaders", "http_tls_cert", "http_tls_key"):
        path = getattr(options, name)
        if path is not None:
            _check_readable(f"--{name.replace('_', '-')}", path)
    if (options.http_tls_cert is None) != (options.http_tls_key is None):
        raise ConfigError("--http-tls-cert and --http-tls-key: give both, or none of them")
    if options.http_tls_cert is not None:
        check_certificate(options.http_tls_cert, options.http_tls_key)
    if options.gridengine_xml is not None and not os.path.isdir(options.gridengine_xml):
        raise ConfigError(f"--gridengine-xml {options.gridengine_xml}: not a directory")
    _check_encoding(options.gridengine_encoding)
    if not is_unix:
        resolve(options.http_listen, "--http-listen")


def _check_readable(option: str, path: str) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except (OSError, ValueError) as err:
        what = f"{option} {path!r}: {getattr(err, 'strerror', None) or err}"
        raise ConfigError(what + ("; 'colmet access' makes it" if option == "--http-users" else "")) from err
    if not os.path.isfile(path):
        raise ConfigError(f"{option} {path!r}: not a regular file")


def _check_encoding(name: str) -> None:
    try:
        b"a".decode(name)  # some encodings are not of text
    except (LookupError, ValueError, TypeError) as err:
        raise ConfigError(
            f"--gridengine-encoding {name!r}: not the name of an encoding, such as utf-8 or iso-8859-15"
        ) from err


def check_certificate(cert: str, key: str) -> None:
    """Check that a certificate chain and its key match, and can be used; else raise ConfigError."""
    import ssl  # some megabytes of OpenSSL

    try:
        # a key with a passphrase is an error, as a daemon cannot prompt for it
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as err:
        raise ConfigError(
            f"--http-tls-cert {cert} and --http-tls-key {key}: {err}; give a certificate and its key without a "
            "passphrase, as PEM"
        ) from err


def check_address(listen: ListenAddress | UnixAddress) -> None:
    """Check that the address can be bound, else raise ConfigError; the listening process binds it itself."""
    if isinstance(listen, UnixAddress):
        directory = os.path.dirname(listen.path)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise ConfigError(
                f"--http-listen unix:{listen.path}: cannot write the directory {directory}; make it, for the "
                "collector's user"
            )
        return
    family, address = resolve(listen, "--http-listen")
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as err:
        raise cannot_listen(listen, "--http-listen", err) from err
