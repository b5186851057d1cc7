"""Answers of /qhost and /qstat as values: no field is trusted before its type is checked."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from colmet.batch.qmem import Host, Hosts, JobOnHost, Owners, RequestedJob
from colmet.common.errors import ColmetError

MAX_TEXT = 1024  # characters of a name; the rest is cut off
MAX_SHOWN = 80  # characters of a value in an error
MAX_DIGITS = 400  # of a number: the time to read one grows with their square
MAX_SLOTS = 1 << 24


class AnswerError(ColmetError):
    """An answer does not have the form of QmemTools' server."""


class Envelope(NamedTuple):
    """Envelope of every answer.

    Attributes:
        success: whether there are data.
        message: why not.
        data: of /qhost or /qstat, unchecked.
    """

    success: bool
    message: str
    data: dict[str, Any]


def parse_envelope(text: bytes) -> Envelope:
    """Parse the answer to a request.

    Args:
        text: of the answer.

    Raises:
        AnswerError: not an answer.
    """
    answer = parse_json(text)
    if not isinstance(answer, dict) or type(answer.get("success")) is not bool:
        raise AnswerError("there is no `success` in it; does a collector with --http-listen listen there?")
    return Envelope(
        answer["success"], _text(answer.get("message", ""), "message"), _mapping(answer.get("data", {}), "data")
    )


def parse_json(text: bytes) -> Any:
    """Parse any JSON.

    Raises:
        AnswerError: not JSON.
    """
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
    """Parse the data of /qhost.

    Raises:
        AnswerError: another form; the text names the place.
    """
    return {_name(host): _host(value, f"data[{_shown(host)}]") for host, value in data.items()}


def _host(value: Any, where: str) -> Host:
    host = _mapping(value, where)
    jobs = _mapping(host.get("jobs"), f"{where}.jobs")
    return {
        "num_proc": _text(host.get("num_proc"), f"{where}.num_proc"),
        "mem_total": _text(host.get("mem_total"), f"{where}.mem_total"),
        "jobs": {_name(job): _on_host(one, f"{where}.jobs[{_shown(job)}]") for job, one in jobs.items()},
    }


def _on_host(value: Any, where: str) -> JobOnHost:
    job = _mapping(value, where)
    count, master = job.get("jobcount"), job.get("master")
    if type(count) is not int or not 0 <= count <= MAX_SLOTS:
        raise AnswerError(f"{where}.jobcount is {_shown(count)}, not a number of slots")
    if type(master) is not bool:
        raise AnswerError(f"{where}.master is {_shown(master)}, neither true nor false")
    tasks = job.get("taskid")
    if not isinstance(tasks, list):
        raise AnswerError(f"{where}.taskid is {_shown(tasks)}, not a list")
    return {
        "jobcount": count,
        "master": master,
        "taskid": [_text(task, f"{where}.taskid") for task in tasks],
        "owner": _text(job.get("owner"), f"{where}.owner"),
        "jobname": _text(job.get("jobname"), f"{where}.jobname"),
    }


def parse_owners(data: dict[str, Any]) -> Owners:
    """Parse the data of /qstat.

    Raises:
        AnswerError: another form; the text names the place.
    """
    owners: Owners = {}
    for name, value in data.items():
        where = f"data[{_shown(name)}]"
        owner = _mapping(value, where)
        jobs = _mapping(owner.get("jobs"), f"{where}.jobs")
        owners[_name(name)] = {
            "uid": _text(owner.get("uid"), f"{where}.uid"),
            "jobs": {_name(job): _requested(one, f"{where}.jobs[{_shown(job)}]") for job, one in jobs.items()},
        }
    return owners


def _requested(value: Any, where: str) -> RequestedJob:
    job = _mapping(value, where)
    asked = job.get("requested_h_vmem_dblval")
    if not isinstance(asked, (int, float)) or isinstance(asked, bool) or not 0 <= asked < 1 << 63:
        raise AnswerError(f"{where}.requested_h_vmem_dblval is {_shown(asked)}, not a number of bytes")
    hosts = _mapping(job.get("hostname"), f"{where}.hostname")
    return {
        "requested_h_vmem_strval": _text(job.get("requested_h_vmem_strval"), f"{where}.requested_h_vmem_strval"),
        "requested_h_vmem_dblval": float(asked),
        "hostname": {_name(host): _texts(used, f"{where}.hostname[{_shown(host)}]") for host, used in hosts.items()},
    }


def _texts(value: Any, where: str) -> dict[str, str]:
    return {_name(key): _text(one, f"{where}[{_shown(key)}]") for key, one in _mapping(value, where).items()}


def _name(key: str) -> str:
    return key[:MAX_TEXT]


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise AnswerError(f"{where} is {_shown(value)}, not a text")
    return value[:MAX_TEXT]


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
