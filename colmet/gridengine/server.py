"""Client of /qhost and /qstat of a server: the collector's JSON interface, or QmemTools' own.

No field of an answer is trusted before its type is checked.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from colmet.batch.gridengine_memory import Hosts, Owners
from colmet.commands import remote
from colmet.commands.remote import InterfaceError
from colmet.commands.top_view import clean
from colmet.common.errors import ColmetError, ConfigError
from colmet.common.http_client import is_readable_on_the_way

log = logging.getLogger(__name__)

T = TypeVar("T")

NOT_FOUND = 404
_PLACE = re.compile(r"[^\s:/@?#\[\]]{1,255}:(\d{1,5})", re.ASCII)
MAX_NAME = 1024  # characters of a name; the rest is cut off
MAX_SHOWN = 80  # characters of a value in an error
MAX_DIGITS = 400  # of a number: the time to read one grows with their square
MAX_SLOTS = 1 << 24


class AnswerError(ColmetError):
    """An answer does not have the form of QmemTools' server."""


class Envelope(NamedTuple):
    """Envelope of every answer."""

    success: bool  # whether there are data
    message: str  # why not
    data: dict[str, Any]  # of /qhost or /qstat, unchecked


def parse_envelope(text: bytes) -> Envelope:
    """Parse the answer to a request; raise AnswerError if it is none."""
    answer = parse_json(text)
    if not isinstance(answer, dict) or type(answer.get("success")) is not bool:
        raise AnswerError("there is no `success` in it; does colmet-web listen there?")
    data = answer.get("data", {})
    _checked(data, {}, "data")
    return Envelope(answer["success"], _checked(answer.get("message", ""), str, "message"), data)


def parse_json(text: bytes) -> Any:
    """Parse any JSON; raise AnswerError for other text."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_int=_whole)
    except (ValueError, RecursionError) as err:
        raise AnswerError(f"not JSON: {str(err)[:MAX_SHOWN]}") from err


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def parse_hosts(data: dict[str, Any]) -> Hosts:
    """Parse the data of /qhost; raise AnswerError with the place of another form."""
    return cast(Hosts, _checked(data, _HOSTS, "data"))


def parse_owners(data: dict[str, Any]) -> Owners:
    """Parse the data of /qstat; raise AnswerError with the place of another form."""
    return cast(Owners, _checked(data, _OWNERS, "data"))


def _checked(value: Any, form: Any, where: str) -> Any:
    """Return a value in a form: of `_KINDS`, a list of one, fields by name, or `Any` of them under other names."""
    if isinstance(form, list):
        if not isinstance(value, list):
            raise AnswerError(f"{where} is {_shown(value)}, not a list")
        return [_checked(one, form[0], where) for one in value]
    if isinstance(form, dict):
        if not isinstance(value, dict):
            raise AnswerError(f"{where} is {_shown(value)}, not an object")
        if Any in form:
            return {key[:MAX_NAME]: _checked(one, form[Any], f"{where}[{_shown(key)}]") for key, one in value.items()}
        return {name: _checked(value.get(name), part, f"{where}.{name}") for name, part in form.items()}
    fits, what = _KINDS[form]
    if not fits(value):
        raise AnswerError(f"{where} is {_shown(value)}, {what}")
    return value[:MAX_NAME] if form is str else form(value)


def _shown(value: Any) -> str:
    """Return a value for an error; for an object or a list only its kind."""
    if value is None:
        return "missing"
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return f"{value!r:.{MAX_SHOWN}}" if not isinstance(value, int) or value.bit_length() < 256 else "a huge number"


_KINDS: dict[type, tuple[Callable[[Any], bool], str]] = {
    str: (lambda value: isinstance(value, str), "not a text"),
    bool: (lambda value: type(value) is bool, "neither true nor false"),
    int: (lambda value: type(value) is int and 0 <= value <= MAX_SLOTS, "not a number of slots"),
    float: (lambda value: type(value) in (int, float) and 0 <= value < 1 << 63, "not a number of bytes"),
}
_JOB = {"jobcount": int, "master": bool, "taskid": [str], "owner": str, "jobname": str}
_HOSTS = {Any: {"num_proc": str, "mem_total": str, "jobs": {Any: _JOB}}}
_REQUEST = {"requested_h_vmem_strval": str, "requested_h_vmem_dblval": float, "hostname": {Any: {Any: str}}}
_OWNERS = {Any: {"uid": str, "jobs": {Any: _REQUEST}}}


class Fetched(NamedTuple):
    """The answers of a server."""

    hosts: Hosts  # of /qhost
    owners: Owners  # of /qstat
    knows_all: bool  # whether they are of all jobs; otherwise only of the logged-in user's jobs


def checked_address(text: str) -> str:
    """Return the address of a server, a URL or HOST:PORT without TLS, as a URL without a final slash.

    ConfigError for others; its text does not repeat a password.
    """
    if "://" not in text:
        match = _PLACE.fullmatch(text)
        if not match or not 0 < int(match[1]) < 65536 or not text.isprintable():
            raise ConfigError(f"{text!r:.200} is neither HOST:PORT nor a URL such as https://head.example.org:8080")
        return f"http://{text}"
    return remote.checked_url(text, True)


class QmemClient:
    """The client of one server, at an address of `checked_address`, with the login that this user has there.

    `ca_file` has the certificates of the accepted authorities. ConfigError if it, or the login, cannot be used.
    """

    def __init__(self, url: str, ca_file: str | None = None) -> None:
        login = remote.login_of(url)
        self._has_login = login is not None
        self._client = remote.InterfaceClient(url, "" if login is None else login.authorization, ca_file)
        if self._has_login and is_readable_on_the_way(url):
            log.warning("%s: password and token can be read on the way; use https", url)

    def fetch(self) -> Fetched:
        """Query the server; raise InterfaceError for no answer, an invalid one, or one without data."""
        hosts = self._data("qhost", parse_hosts)
        has_jobs = any(host["jobs"] for host in hosts.values())
        owners = self._data("qstat", parse_owners, needed=has_jobs)
        return Fetched(hosts, owners, self._knows_all())

    def _data(self, name: str, parse: Callable[[dict[str, Any]], T], needed: bool = True) -> T:
        """Return the data of /qhost or /qstat; if not needed, empty without data."""
        place = f"{self._client.url}/{name}"
        try:
            answer = parse_envelope(self._client.read(f"/{name}"))
            if answer.success or not needed:
                return parse(answer.data if answer.success else {})
        except AnswerError as err:
            raise InterfaceError(f"{place}: {err}") from err
        why = clean(answer.message[: remote.MAX_TEXT]) or "it has no data, and does not say why"
        if why.startswith("No data for "):
            own = "you have no job that runs, or " if self._has_login else ""
            why += f": {own}no node has sent anything yet, or Grid Engine does not answer; the server's log says why"
        raise InterfaceError(f"{place}: {why}")

    def _knows_all(self) -> bool:
        """Return whether the answers are of all jobs, and not of one user's. QmemTools' server knows no users."""
        if not self._has_login:
            return True
        try:
            return self._client.get("whoami").get("admin") is True
        except InterfaceError as err:
            return err.status == NOT_FOUND
