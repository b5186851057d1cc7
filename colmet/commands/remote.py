"""Ask the JSON interface of a collector: the option --url of several commands, and the logins that they use."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import socket
import ssl
import stat
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from colmet import __version__
from colmet.commands.top_view import clean
from colmet.common import http_client
from colmet.common.config import cli, configuration
from colmet.common.errors import ColmetError, ConfigError, is_later, later_form
from colmet.common.host.files import write_whole

TIMEOUT_S = 90.0  # of an answer; the interface has 60 s
RETRIES, MAX_PAUSE_S = 5, 30.0  # after an answer 429
MAX_BYTES = 128 << 20  # of an answer
MAX_TEXT = 300  # characters of an error of the interface
URL = "COLMET_URL"  # of the environment
TOKEN = "COLMET_TOKEN"  # of the environment
_OTHER_NAME = (62, 64)  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
CLIENT = "/etc/colmet/client.toml"  # the site's, for its users
# Options that name another source of a command.
_SOURCES = ("archive", "hdf5", "control_socket", "daemon")
_EXPECTED = "is it colmet-web?"


class InterfaceError(ColmetError):
    """The interface does not answer, or with an error."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status  # of HTTP; 0 without an answer


def add_options(parser: cli.Options) -> None:
    """Declare --url."""
    parser.add_argument(
        "--url",
        metavar="URL",
        help="ask a collector's JSON interface at this URL, such as https://head.example.org:8080, with the login of "
        "`colmet login`; it requires no right to read files, and users see their own jobs; default: $COLMET_URL, the "
        "only login of `colmet login`, or the site's",
    )


def add_connection(parser: cli.Options) -> None:
    """Declare the options of a connection; `colmet login` keeps them, and the site's file has them."""
    parser.add_argument(
        "--ca-file", metavar="FILE", help="CA certificates (PEM) for https (default: those of this machine)"
    )
    parser.add_argument(
        "--allow-http",
        action="store_true",
        help=cli.Rare("accept a URL with http:// of another machine: others on the way can read the login"),
    )


def checked_url(text: str, allow_http: bool) -> str:
    """Return the URL of an interface without a final slash; raise ConfigError if it is none, or not safe."""
    if "@" in text:
        raise ConfigError("give no user and password in the URL: every user of this machine could read them")
    parts = http_client.parse_url(text)
    if parts is None or parts.query or parts.fragment or len(text) > 2000:
        raise ConfigError(f"{text!r:.200} is not a URL such as https://head.example.org:8080")
    if http_client.is_readable_on_the_way(text) and not allow_http:
        raise ConfigError(
            f"{text:.200}: others on the way could read the login; give https://, or `colmet login --allow-http`"
        )
    return text.rstrip("/")


class Interface(NamedTuple):
    """The address of an interface, and how to connect to it."""

    url: str
    ca_file: str | None = None  # certificates of the accepted authorities; None for those of this machine
    allow_http: bool = False  # whether others on the way may read


def default_interface(reads_archive: bool = True) -> Interface | None:
    """Return the interface for commands that name no source; None for this machine's collector, or without any.

    It is that of COLMET_URL, that of the only kept login, or of the site's file. A command that reads an archive
    prefers that of this machine, if it may.
    """
    site = _site_interface()
    if os.environ.get(URL):
        return site._replace(url=os.environ[URL])
    # Who may read the archive needs no login, which may have expired.
    if reads_archive and _may_read_archive():
        return None
    login_url = only_url()
    if login_url:
        login = find_login(login_url)
        return site._replace(url=login_url, ca_file=(login.ca_file if login else "") or site.ca_file)
    return site if site.url else None


def _may_read_archive() -> bool:
    """Return whether this machine has a collector whose archive this user may read; all may read its configuration."""
    from colmet.jobs.archive.local import is_in_database, path_of  # with libraries that `colmet login` does not need
    from colmet.stored import sources

    if not os.access(sources.CONFIG, os.R_OK):
        return False
    collector = sources.configured(sources.CONFIG)
    paths = [path_of(collector)]
    if is_in_database(collector):
        paths = [collector.http_credentials, collector.elastic_api_key_file]
    return all(os.access(path, os.R_OK) for path in paths if path)


def _site_interface() -> Interface:
    """Return what the site's file says; ConfigError if it cannot be used. Its keys are the options."""
    if not os.path.exists(CLIENT):
        return Interface("")
    parser = cli.Parser(prog="colmet")
    parser.add_argument("--url")
    add_connection(parser)
    values = configuration.parse(configuration.file_text(CLIENT), CLIENT, parser)
    return Interface(values.get("url", ""), values.get("ca_file"), values.get("allow_http", False))


def interface_of(options: argparse.Namespace) -> Interface | None:
    """Return the interface that a command asks: that of --url, else `default_interface`; None for another source."""
    if options.url is not None:
        return _site_interface()._replace(url=options.url)
    is_local = any(getattr(options, name, None) for name in _SOURCES)
    if hasattr(options, "config"):
        from colmet.stored.sources import CONFIG

        is_local = is_local or options.config != CONFIG
    return None if is_local else default_interface()


def client_of(options: argparse.Namespace) -> InterfaceClient | None:
    """Return the client for `interface_of`, with the kept login or that of the environment; None without one.

    `colmet login` has checked the URL of a kept login. Without a login there is none to be read on the way.
    """
    interface = interface_of(options)
    if interface is None:
        return None
    url = checked_url(interface.url, True)
    kept, login = find_login(url), login_of(url)
    if login is not None and kept is None:
        checked_url(url, interface.allow_http)
    ca_file = kept.ca_file if kept is not None and kept.ca_file else interface.ca_file
    return InterfaceClient(url, "" if login is None else login.authorization, ca_file)


class InterfaceClient:
    """A client of one interface, at a URL of `checked_url`. For one thread.

    `authorization` is the header of that name, empty without a login; `ca_file` has the certificates of the accepted
    authorities, None for those of this machine.
    """

    def __init__(self, url: str, authorization: str = "", ca_file: str | None = None) -> None:
        self.url = url
        self._has_login = bool(authorization)
        tls = http_client.TlsOptions(ca_file=ca_file or None)
        tls.check("--ca-file")
        headers = {"User-Agent": f"colmet/{__version__}", "Accept": "application/json"}
        if authorization:
            headers["Authorization"] = authorization
        self._http = http_client.HttpClient(headers, tls, MAX_BYTES)

    def get(self, path: str, parameters: Mapping[str, object] | None = None, method: str = "GET") -> dict[str, Any]:
        """Return the answer of a route below /api/v1, a JSON object; parameters that are None are left out."""
        try:
            found = json.loads(self.read(path, parameters, method), parse_constant=_refuse)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise InterfaceError(f"{self.url}: the answer is no JSON object; {_EXPECTED}")
        return found

    def read(self, path: str, parameters: Mapping[str, object] | None = None, method: str = "GET") -> bytes:
        """Return the body of an answer; see `get`. A path that begins with a slash is not below /api/v1."""
        given = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in (parameters or {}).items()
            if value is not None
        }
        place = path if path.startswith("/") else f"/api/v1/{path}"
        url = f"{self.url}{place}" + (f"?{urlencode(given)}" if given else "")
        for attempt in range(RETRIES + 1):
            try:
                response = self._http.request(method, url, timeout_s=TIMEOUT_S, deadline_s=TIMEOUT_S)
                if response.status == 200:
                    return response.body()
            except http_client.HttpFailure as err:
                raise InterfaceError(f"{self.url}: {_reason_of(err)}") from err
            if response.status != 429 or attempt == RETRIES:
                break
            wait = response.headers.get("Retry-After", "")
            is_number = wait.isascii() and wait.isdigit() and len(wait) < 6
            time.sleep(min(MAX_PAUSE_S, float(wait)) if is_number else 1.0)
        raise InterfaceError(self._refusal(response), response.status)

    def _refusal(self, response: http_client.HttpResponse) -> str:
        status = response.status
        if status == 401:
            if self._has_login:
                return f"{self.url} refused the login, or it has expired: colmet login {self.url}"
            return f"{self.url} requires a login: colmet login {self.url}"
        if 300 <= status < 400:
            return f"{self.url}: the interface is at {response.headers.get('Location', '')[:MAX_TEXT]!r}; give that URL"
        try:
            said = clean(str(json.loads(response.start[:4096])["error"])[:MAX_TEXT])
        except (ValueError, TypeError, KeyError, RecursionError):
            said = f"status {status}; {_EXPECTED}"
        return f"{self.url}: {said}"

    @contextlib.contextmanager
    def checking_form(self) -> Iterator[None]:
        """Raise ColmetError where an answer has not the form in which it is read."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as err:
            text = "the answer has not the described form; is it of another version?"
            raise ColmetError(f"{self.url}: {text}") from err

    def close(self) -> None:
        """Close all connections."""
        self._http.close()


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _reason_of(err: http_client.HttpFailure) -> str:
    """Return why there is no answer, with the remedy."""
    cause = err.cause
    if err.is_late or isinstance(cause, socket.timeout):  # TimeoutError is another one before Python 3.10
        return f"no whole answer within {TIMEOUT_S:g} s"
    if isinstance(cause, ssl.SSLCertVerificationError):
        # an old urllib3 compares names by itself, and gives no code
        is_other = getattr(cause, "verify_code", _OTHER_NAME[0]) in _OTHER_NAME
        what = "give the URL with a name that is in it" if is_other else "--ca-file names who may vouch for it"
        return f"its certificate: {clean(getattr(cause, 'verify_message', cause))}; {what}"
    if isinstance(cause, ssl.SSLError):
        return f"no TLS: {clean(cause.reason or cause)}"
    if isinstance(cause, ConnectionRefusedError):
        return f"{cause.strerror or cause}; {_EXPECTED}"
    if cause is None:
        return str(err)
    if isinstance(cause, OSError):
        return clean(cause.strerror or cause)
    return f"no answer of HTTP ({clean(str(err)[:MAX_TEXT])})"


# -- the logins kept by `colmet login`: a file for its user alone, with a secret for each interface --

FILE = "logins.json"
FORM = 1  # of the file, its key "form"; the first files have none
MAX_LOGINS_BYTES = 1 << 20
BEARER, BASIC = "bearer", "basic"
SECRET = re.compile(r"[!-~]{1,4096}", re.ASCII)  # of a token: characters of a header


class Login(NamedTuple):
    """A login at one interface."""

    kind: str  # `BEARER` for a token, `BASIC` for a name and a password
    secret: str  # the token, or NAME:PASSWORD
    user: str = ""  # as the interface names it
    until: int | None = None  # end of the token, seconds since 1970; None if unknown
    ca_file: str = ""  # certificates of the accepted authorities; "" for those of this machine

    @property
    def authorization(self) -> str:
        """Return the header Authorization."""
        return f"Bearer {self.secret}" if self.kind == BEARER else http_client.basic_authorization(self.secret)


def logins_path() -> str:
    """Return the path of the file; ConfigError without a home directory."""
    home = os.path.expanduser("~")
    above = os.environ.get("XDG_CONFIG_HOME") or (os.path.join(home, ".config") if os.path.isabs(home) else "")
    if not os.path.isabs(above):
        raise ConfigError("no home directory, and XDG_CONFIG_HOME is no absolute path: there is no place for logins")
    return os.path.join(above, "colmet", FILE)


def find_login(url: str) -> Login | None:
    """Return the login at this URL, None without one; ConfigError if the file is damaged or not private."""
    return _read().get(url)


def only_url() -> str:
    """Return the URL of the only kept login; "" without one, with several, or if the file cannot be used."""
    try:
        urls = list(_read())
    except ConfigError:
        return ""
    return urls[0] if len(urls) == 1 else ""


def login_of(url: str) -> Login | None:
    """Return the token of the environment, else `find_login`; ConfigError if either cannot be used."""
    token = os.environ.get(TOKEN, "")
    if token and not SECRET.fullmatch(token):
        raise ConfigError(f"{TOKEN} of the environment: not a token")
    return Login(BEARER, token) if token else find_login(url)


def keep_login(url: str, login: Login) -> None:
    """Write a login into the file; it replaces an earlier one of this URL."""
    with _locked():
        _write({**_read(), url: login})


def remove_login(url: str) -> bool:
    """Remove the login at this URL; return whether there was one."""
    if url not in _read():
        return False
    with _locked():
        found = _read()
        found.pop(url, None)
        _write(found)
    return True


def _read() -> dict[str, Login]:
    name = logins_path()
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        return {}
    except OSError as err:
        what = "a symbolic link" if os.path.islink(name) else err.strerror
        raise ConfigError(f"{name}: {what}; remove it, and log in again") from err
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise ConfigError(f"{name}: not a file of this user; remove it, and log in again")
        if status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise ConfigError(
                f"{name}: others can use it (mode {mode:04o}), and the secrets in it: chmod 600 it, and log in again"
            )
        content = file.read(MAX_LOGINS_BYTES + 1)
    try:
        found = json.loads(content[:MAX_LOGINS_BYTES])
        if is_later(form := found.pop("form", FORM), FORM):
            raise ConfigError(later_form(name, form, FORM, "remove it, and log in again"))
        logins = {str(url): Login(**one) for url, one in found.items()}
        for one in logins.values():
            if not all(isinstance(text, str) for text in (*one[:3], one.ca_file)):
                raise TypeError
            if not isinstance(one.until, (int, type(None))):
                raise TypeError
            if one.kind != BASIC and (one.kind != BEARER or not SECRET.fullmatch(one.secret)):
                raise ValueError
    except (ValueError, TypeError, AttributeError, RecursionError) as err:
        raise ConfigError(f"{name}: damaged; remove it, and log in again") from err
    return logins


def _write(logins: dict[str, Login]) -> None:
    entries = {url: login._asdict() for url, login in sorted(logins.items())}
    content = json.dumps({"form": FORM, **entries}, indent=1)
    try:
        write_whole(logins_path(), f"{content}\n".encode(), shared=True)
    except OSError as err:
        raise ConfigError(f"{logins_path()}: {err.strerror}") from err


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Allow one change at a time; make the directory, which others may not write."""
    folder = os.path.dirname(logins_path())
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise ConfigError(f"{folder}: {err.strerror}") from err
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ConfigError(f"{folder}: others can write it; chmod 700 it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
