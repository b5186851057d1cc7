"""Memory requested and used by Grid Engine's jobs on each host, from `qhost -j -xml` and `qstat -j '*' -xml`.

Both are necessary: `qhost` lists the hosts of a job; `qstat -j` its requests and usage, without the host of the master
task. The structure is that of QmemTools' server (`/qhost` and `/qstat`), also for the figures of nodes. Where QmemTools
miscounts, this module follows Grid Engine:

* A host has a line for each slot of a parallel job there. The host of the master task has one more line if the parallel
  environment has `job_is_first_task FALSE`: the master task then needs no slot (sge_pe(5)). The requested
  number of slots shows it. If the request was a range and fits both cases, a third command prints the granted slots;
  with two files only, other jobs of the parallel environment decide, and without any, all lines count.
* An array job's `jobcount` is the slots of each task in `taskid`; `jobcount * len(taskid)` are its slots on the
  host: 1 unless the tasks are parallel. If such tasks have unequal shares of a host, `taskid` repeats some of them.
* A request of h_vmem is for each slot (complex(5), consumable YES). With consumable JOB it is for all slots together,
  and is divided by them: the sum is right, but the master reserves all of it on the host of the master task. Neither
  command prints the memory reserved for jobs without a request (the complex's default).
* The slave tasks' maxvmem is the sum of the unfinished tasks on the host; finished tasks are printed without a host,
  and are skipped.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypedDict
from xml.etree.ElementTree import Element

from colmet.batch.gridengine_xml import child_text, read_elements

COMMANDS = ("qhost -j -xml", "qstat -j '*' -xml")
_NUMBER = re.compile("[0-9]{1,10}")  # of a job or a task
_MEMORY = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+\.?[0-9]*|\.[0-9]+)([kKmMgGtT]?)")
_PATTERN = re.compile(r"[*?\[\]!&|()]")
_MULTIPLIERS = {"": 1.0}
_MULTIPLIERS.update({letter: 1000.0**power for power, letter in enumerate("kmgt", 1)})
_MULTIPLIERS.update({letter: 1024.0**power for power, letter in enumerate("KMGT", 1)})
_HUGE = 2.0**63  # bytes, more than any host has; INFINITY is printed as a larger number
_PER_JOB = "2"  # CE_consumable of a complex with consumable JOB
_KEPT_OF_JOB = frozenset(
    ("JB_job_number", "JB_owner", "JB_uid", "JB_hard_resource_list", "JB_ja_tasks", "JB_pe", "JB_pe_range")
)


class JobOnHost(TypedDict):
    """A job on a host."""

    jobcount: int  # its slots there; 1 for each host of an array job's task
    master: bool  # whether its master task is there
    taskid: list[str]  # numbers of its array tasks there, as texts; empty for a job that is no array
    owner: str  # name of the user
    jobname: str  # its name


class BatchHost(TypedDict):
    """A host."""

    num_proc: str  # its processors, as the batch system prints them; "-" if unknown
    mem_total: str  # its memory, as the batch system prints it, such as "47.3G"; "-" if unknown
    jobs: dict[str, JobOnHost]  # by number, as text


class RequestedJob(TypedDict):
    """Requested and peak memory of a job."""

    requested_h_vmem_strval: str  # requested memory for each slot, such as "2G"; "" without a request
    requested_h_vmem_dblval: float  # the same in bytes; 0.0 without a request
    hostname: dict[str, dict[str, str]]  # host -> "master", "slave" or an array's task -> peak bytes, as text


class Owner(TypedDict):
    """A user with jobs."""

    uid: str  # as text
    jobs: dict[str, RequestedJob]  # by number, as text


Hosts = dict[str, BatchHost]  # /qhost
Owners = dict[str, Owner]  # /qstat


def envelope(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer in the form of QmemTools' server: no success without data."""
    if not data:
        return {"success": False, "message": f"No data for {name}", "data": {}}
    return {"success": True, "message": "", "data": dict(data)}


class Lines(NamedTuple):
    """Lines of a job, or of a task of an array job, on a host."""

    total: int  # number of lines
    master: bool  # whether one is of the master task


class PlacedHost(NamedTuple):
    """A host in the output of `qhost`."""

    num_proc: str  # processors, as printed
    mem_total: str  # memory, as printed
    names: dict[str, tuple[str, str]]  # job number -> owner and name
    lines: dict[str, dict[str, Lines]]  # job number -> number of the array task, or "" -> its lines


class TaskUsage(NamedTuple):
    """Peak memory of a task of an array job, or of a job without tasks."""

    master: float | None  # bytes, of the master task; None if unknown
    slaves: dict[str, float]  # host -> bytes of all slave tasks there


class RequestedMemory(NamedTuple):
    """A job in the output of `qstat -j`."""

    owner: str  # name of the user
    uid: str  # of the owner, as printed
    text: str  # h_vmem, as requested; "" without a request
    memory: float  # the same in bytes; 0.0 without a request or without a bound
    per_job: bool  # the request is for all slots together (a complex with consumable JOB)
    pe: str  # the requested parallel environment; "" for none
    slots: tuple[int, int] | None  # requested minimum and maximum; None for a serial job
    tasks: dict[str, TaskUsage]  # task number, "1" for a job that is no array -> its usage


class QmemData(NamedTuple):
    """Memory of all hosts and owners."""

    hosts: Hosts  # for `/qhost`
    owners: Owners  # for `/qstat`
    left_out: int  # jobs and tasks skipped because a required field, such as the number, is missing


Granted = Callable[[], Mapping[tuple[str, str], int]]  # job, and task of an array job or "" -> granted slots


def read_memory(
    qhost: bytes, qstat: bytes, encoding: str, granted: Granted | None = None, names: tuple[str, str] = COMMANDS
) -> QmemData:
    """Return hosts and owners from the output of `qhost -j -xml` and `qstat -j '*' -xml`; BatchError for others.

    `granted` returns the granted slots if these two leave them open; `names` are of both, for errors.
    """
    hosts, left_out = parse_qhost(qhost, encoding, names[0])
    jobs, left_out_too = parse_qstat(qstat, encoding, names[1])
    return QmemData(*count(hosts, jobs, granted), left_out + left_out_too)


def parse_memory(text: str) -> float | None:
    """Return bytes of a memory_specifier (sge_types(1)); K, M, G are of 1024, k, m, g of 1000; None if invalid."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        return None
    digits, letter = match.groups()
    if digits[:2] in ("0x", "0X"):
        return _sane(float(int(digits, 16)) * _MULTIPLIERS[letter] if len(digits) < 20 else math.inf)
    if digits[0] == "0" and digits.isdigit():
        try:
            return _sane(int(digits[:30], 8) * _MULTIPLIERS[letter])
        except ValueError:
            return None
    return _sane(float(digits[:400]) * _MULTIPLIERS[letter])


def parse_qhost(data: bytes, encoding: str, source: str = COMMANDS[0]) -> tuple[dict[str, PlacedHost], int]:
    """Return hosts by name, without "global", and the number of skipped lines; raise BatchError for other output."""
    hosts: dict[str, PlacedHost] = {}
    left_out = 0
    keep = frozenset(("hostvalue", "job"))
    for element in read_elements(data, encoding, source, ("qhost", "host"), keep):
        name = element.get("name", "")
        if name == "global":
            continue
        if not name:
            left_out += 1
            continue
        values = _values(element, "hostvalue")
        host = PlacedHost(values.get("num_proc") or "-", values.get("mem_total") or "-", {}, {})
        host = hosts.setdefault(name, host)
        for line in element.iterfind("job"):
            job, values = line.get("name", ""), _values(line, "jobvalue")
            task = values.get("taskid", "")
            if not _NUMBER.fullmatch(job) or (task and not _NUMBER.fullmatch(task)):
                left_out += 1
                continue
            host.names[job] = values.get("job_owner", ""), values.get("job_name", "")
            lines = host.lines.setdefault(job, {})
            total, master = lines.get(task, Lines(0, False))
            lines[task] = Lines(total + 1, master or values.get("pe_master") == "MASTER")
    return hosts, left_out


def _values(element: Element, tag: str) -> dict[str, str]:
    return {child.get("name", ""): (child.text or "").strip() for child in element.iterfind(tag)}


def parse_qstat(data: bytes, encoding: str, source: str = COMMANDS[1]) -> tuple[dict[str, RequestedMemory], int]:
    """Return jobs by number, and the number of skipped jobs and tasks; raise BatchError for other output."""
    jobs: dict[str, RequestedMemory] = {}
    left_out = 0
    path = ("detailed_job_info", "djob_info", "element")
    for element in read_elements(data, encoding, source, path, _KEPT_OF_JOB):
        number, owner, uid, pe = (child_text(element, f"JB_{tag}") for tag in ("job_number", "owner", "uid", "pe"))
        if not _NUMBER.fullmatch(number) or not owner:
            left_out += 1
            continue
        text, memory, per_job = _read_request(element.find("JB_hard_resource_list"))
        tasks: dict[str, TaskUsage] = {}
        for task in _children(element.find("JB_ja_tasks")):
            task_number = child_text(task, "JAT_task_number")
            if _NUMBER.fullmatch(task_number):
                tasks[task_number] = _read_usage(task)
            else:
                left_out += 1
        slots = _read_slots(element.find("JB_pe_range"))
        jobs[number] = RequestedMemory(owner, uid, text, memory, per_job, pe, slots, tasks)
    return jobs, left_out


def _read_request(resources: Element | None) -> tuple[str, float, bool]:
    """Return the text and bytes of h_vmem among the hard requests, and whether it is for the whole job."""
    for request in _children(resources):
        if child_text(request, "CE_name") == "h_vmem":
            text = child_text(request, "CE_stringval")
            memory = parse_number(child_text(request, "CE_doubleval"))
            if memory is None:
                memory = parse_memory(text)
            return text, memory or 0.0, child_text(request, "CE_consumable") == _PER_JOB
    return "", 0.0, False


def _read_slots(ranges: Element | None) -> tuple[int, int] | None:
    bounds = [
        int(text)
        for part in _children(ranges)
        for text in (child_text(part, "RN_min"), child_text(part, "RN_max"))
        if _NUMBER.fullmatch(text)
    ]
    return (min(bounds), max(bounds)) if bounds else None


def _read_usage(task: Element) -> TaskUsage:
    slaves: dict[str, float] = {}
    for slave in _children(task.find("JAT_task_list")):
        granted = slave.find("PET_granted_destin_identifier_list")
        host = next((child_text(place, "JG_qhostname") for place in _children(granted)), "")
        used = _read_maxvmem(slave.find("PET_scaled_usage"))
        if host and used is not None:
            slaves[host] = slaves.get(host, 0.0) + used
    return TaskUsage(_read_maxvmem(task.find("JAT_scaled_usage_list")), slaves)


def _read_maxvmem(usage: Element | None) -> float | None:
    for value in _children(usage):
        if child_text(value, "UA_name") == "maxvmem":
            return parse_number(child_text(value, "UA_value"))
    return None


def _children(element: Element | None) -> Iterable[Element]:
    return () if element is None else element


def parse_number(text: str) -> float | None:
    """Return a decimal number of bytes, processors and the like; None if invalid."""
    try:
        return _sane(float(text)) if text.isascii() else None
    except ValueError:
        return None


def _sane(value: float) -> float | None:
    return value if 0 <= value < _HUGE else None


def count(
    hosts: Mapping[str, PlacedHost], jobs: Mapping[str, RequestedMemory], granted: Granted | None = None
) -> tuple[Hosts, Owners]:
    """Return slots and memory of each job on each host, by the rules at the head of this module.

    The two commands run one after the other, so each may list jobs unknown to the other.
    """
    extra = _find_extra(hosts, jobs, granted)
    counted: Hosts = {}
    masters: dict[tuple[str, str], str] = {}
    totals: dict[str, int] = defaultdict(int)
    for name, host in hosts.items():
        on_host: dict[str, JobOnHost] = {}
        for job, lines in host.lines.items():
            slots = {}
            for task, (lines_there, master) in lines.items():
                slots[task] = max(lines_there - (job in extra and master), 1)
                if master:
                    masters[job, task] = name
            totals[job] += sum(slots.values())
            on_host[job] = _on_host(slots, any(line.master for line in lines.values()), *host.names[job])
        counted[name] = BatchHost(num_proc=host.num_proc, mem_total=host.mem_total, jobs=on_host)
    owners: Owners = {}
    for number, job_memory in jobs.items():
        owner = owners.setdefault(job_memory.owner, Owner(uid=job_memory.uid, jobs={}))
        memory = job_memory.memory / (max(totals[number], 1) if job_memory.per_job else 1)
        owner["jobs"][number] = RequestedJob(
            requested_h_vmem_strval=job_memory.text,
            requested_h_vmem_dblval=memory,
            hostname=_used(number, job_memory.tasks, masters),
        )
    return counted, owners


def _on_host(slots: Mapping[str, int], master: bool, owner: str, name: str) -> JobOnHost:
    tasks = [task for task in slots if task]
    if tasks:
        jobcount = reduce(math.gcd, slots.values())
        tasks = [task for task in tasks for _ in range(slots[task] // jobcount)]
    else:
        jobcount = sum(slots.values())
    return JobOnHost(jobcount=jobcount, master=master, taskid=tasks, owner=owner, jobname=name)


def _used(
    job: str, tasks: Mapping[str, TaskUsage], masters: Mapping[tuple[str, str], str]
) -> dict[str, dict[str, str]]:
    """Return host -> part of the job there -> its peak bytes, as Grid Engine prints them."""
    used: dict[str, dict[str, float]] = {}
    for number, usage in tasks.items():
        is_array = (job, number) in masters
        host = masters.get((job, number if is_array else ""))
        if host is None:
            continue  # on no host, or just started
        shares = [(where, "slave", value) for where, value in usage.slaves.items()]
        if usage.master is not None:
            shares.insert(0, (host, "master", usage.master))
        for where, role, value in shares:
            on_host = used.setdefault(where, {})
            key = number if is_array else role
            on_host[key] = on_host.get(key, 0.0) + value
    return {host: {key: f"{value:.6f}" for key, value in values.items()} for host, values in used.items()}


def _find_extra(
    hosts: Mapping[str, PlacedHost], jobs: Mapping[str, RequestedMemory], granted: Granted | None
) -> frozenset[str]:
    """Return the jobs with an extra line, without a slot, for their master task."""
    lines: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for host in hosts.values():
        for job, tasks in host.lines.items():
            for task, (total, _) in tasks.items():
                lines[job][task] += total
    said: dict[str, bool] = {}
    open_jobs: list[str] = []
    for number, job_memory in jobs.items():
        if job_memory.slots is None or number not in lines:
            continue
        answer = _has_extra(list(lines[number].values()), *job_memory.slots)
        if answer is None:
            open_jobs.append(number)
        else:
            said[number] = answer
    if open_jobs:
        # a pattern as the name may have matched any of several environments
        names = {number: jobs[number].pe for number in said if not _PATTERN.search(jobs[number].pe)}
        of_pe = {pe: said[number] for number, pe in names.items()}
        slots = granted() if granted is not None else {}
        for number in open_jobs:
            known = [(total, slots[number, task]) for task, total in lines[number].items() if (number, task) in slots]
            if known:
                said[number] = any(total > given for total, given in known)
            else:
                said[number] = of_pe.get(jobs[number].pe, False)
    return frozenset(number for number, answer in said.items() if answer)


def _has_extra(totals: Sequence[int], least: int, most: int) -> bool | None:
    """Return whether tasks with these line counts, for least to most slots, have one too many; None if unclear."""
    if any(total > most for total in totals):
        return True
    if any(total <= least for total in totals):
        return False
    return None
