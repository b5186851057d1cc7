"""Answers of /qhost and /qstat as values: no field is trusted before its type is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from colmet.batch.gridengine_memory import Hosts, Owners
from colmet.common.errors import ColmetError

MAX_TEXT = 1024  # characters of a name; the rest is cut off
MAX_SHOWN = 80  # characters of a value in an error
MAX_DIGITS = 400  # of a number: the time to read one grows with their square
MAX_SLOTS = 1 << 24

Parse = Callable[[Any, str], Any]  # of a value and its place; raises AnswerError


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
    return Envelope(
        answer["success"], _text(answer.get("message", ""), "message"), _mapping(answer.get("data", {}), "data")
    )


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
    return cast(Hosts, _each(_HOST)(data, "data"))


def parse_owners(data: dict[str, Any]) -> Owners:
    """Parse the data of /qstat; raise AnswerError with the place of another form."""
    return cast(Owners, _each(_OWNER)(data, "data"))


def _each(parse: Parse) -> Parse:
    """Return the parser of an object with values of one kind, by name."""

    def parsed(value: Any, where: str) -> dict[str, Any]:
        items = _mapping(value, where).items()
        return {key[:MAX_TEXT]: parse(one, f"{where}[{_shown(key)}]") for key, one in items}

    return parsed


def _record(**fields: Parse) -> Parse:
    """Return the parser of an object with these fields; others are dropped."""

    def parsed(value: Any, where: str) -> dict[str, Any]:
        record = _mapping(value, where)
        return {name: parse(record.get(name), f"{where}.{name}") for name, parse in fields.items()}

    return parsed


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise AnswerError(f"{where} is {_shown(value)}, not a text")
    return value[:MAX_TEXT]


def _texts(value: Any, where: str) -> list[str]:
    if not isinstance(value, list):
        raise AnswerError(f"{where} is {_shown(value)}, not a list")
    return [_text(one, where) for one in value]


def _slots(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_SLOTS:
        raise AnswerError(f"{where} is {_shown(value)}, not a number of slots")
    return value


def _bool(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise AnswerError(f"{where} is {_shown(value)}, neither true nor false")
    return value


def _bytes(value: Any, where: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise AnswerError(f"{where} is {_shown(value)}, not a number of bytes")
    return float(value)


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise AnswerError(f"{where} is {_shown(value)}, not an object")
    return value


def _shown(value: Any) -> str:
    """Return a value for an error; for an object or a list only its kind."""
    if value is None:
        return "missing"
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return f"{value!r:.{MAX_SHOWN}}" if not isinstance(value, int) or value.bit_length() < 256 else "a huge number"


_ON_HOST = _record(jobcount=_slots, master=_bool, taskid=_texts, owner=_text, jobname=_text)
_HOST = _record(num_proc=_text, mem_total=_text, jobs=_each(_ON_HOST))
_REQUESTED = _record(requested_h_vmem_strval=_text, requested_h_vmem_dblval=_bytes, hostname=_each(_each(_text)))
_OWNER = _record(uid=_text, jobs=_each(_REQUESTED))
