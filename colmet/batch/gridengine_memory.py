"""Memory that Grid Engine's jobs asked for and use, on each host: `qhost -j -xml` and `qstat -j '*' -xml` together.

Neither says all: `qhost` knows which hosts a job is on, `qstat -j` what it asked for and uses, but not where its master
task is. The structure, of `colmet.batch.qmem`, is that of QmemTools; where that counted wrong, this counts as
Grid Engine does:

* A host has a line for each slot of a parallel job there, and one more on the host of the master task where the
  parallel environment says `job_is_first_task FALSE`: its master task takes no slot (sge_pe(5)). That is found out
  from the number of slots that the job asked for. Where it asked for a range, and both numbers are in it, a third
  command tells how many it was given; where only two files are there, other jobs of that parallel environment do, and
  without any, all its lines count.
* An array job's `jobcount` is the slots of each task in `taskid`, so that `jobcount * len(taskid)` are its slots on the
  host: 1 unless the tasks are parallel. Where such tasks have unequal shares of a host, `taskid` has some repeatedly.
* A request of h_vmem is for each slot (complex(5), consumable YES). Where the complex has consumable JOB it is for all
  slots together, and is divided by them: the sum is right, but the master takes it all on the host of the master task.
  What it takes for jobs that ask for nothing (the complex's default) is told by neither command.
* The slave tasks' maxvmem is the sum of those tasks on the host that have not ended; tasks that have ended are told
  without a host, and are left out.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple
from xml.etree.ElementTree import Element

from colmet.batch.gridengine_xml import read_elements
from colmet.batch.qmem import Host, Hosts, JobOnHost, Owner, Owners, RequestedJob

COMMANDS = ("qhost -j -xml", "qstat -j '*' -xml")
_NUMBER = re.compile("[0-9]{1,10}")  # of a job or a task
_MEMORY = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+\.?[0-9]*|\.[0-9]+)([kKmMgGtT]?)")
_PATTERN = re.compile(r"[*?\[\]!&|()]")
_MULTIPLIERS = {"": 1.0}
_MULTIPLIERS.update({letter: 1000.0**power for power, letter in enumerate("kmgt", 1)})
_MULTIPLIERS.update({letter: 1024.0**power for power, letter in enumerate("KMGT", 1)})
_HUGE = 2.0**63  # bytes: no host has it; INFINITY is printed as a number beyond
_PER_JOB = "2"  # CE_consumable of a complex with consumable JOB
_KEPT_OF_JOB = frozenset(
    ("JB_job_number", "JB_owner", "JB_uid", "JB_hard_resource_list", "JB_ja_tasks", "JB_pe", "JB_pe_range")
)


class Lines(NamedTuple):
    """The lines of a job, or of a task of an array job, on a host.

    Attributes:
        total: how many.
        master: whether one is of the master task.
    """

    total: int
    master: bool


class PlacedHost(NamedTuple):
    """A host, as `qhost` tells it.

    Attributes:
        num_proc: processors, as printed.
        mem_total: as printed.
        names: job number -> owner and name.
        lines: job number -> number of the array task, or "" -> its lines.
    """

    num_proc: str
    mem_total: str
    names: dict[str, tuple[str, str]]
    lines: dict[str, dict[str, Lines]]


class TaskUsage(NamedTuple):
    """What one task of an array job uses at most, or a job that is none.

    Attributes:
        master: bytes, of the master task; None where it is not known.
        slaves: host -> bytes of all slave tasks there.
    """

    master: float | None
    slaves: dict[str, float]


class RequestedMemory(NamedTuple):
    """A job, as `qstat -j` tells it.

    Attributes:
        owner: whose it is.
        uid: of the owner, as printed.
        text: h_vmem, as it was asked for; "" where it was not.
        memory: the same in bytes; 0.0 where it was not, or without a bound.
        per_job: the request is for all slots together (a complex with consumable JOB).
        pe: the parallel environment asked for; "" for none.
        slots: least and most that it asked for; None for a job that is not parallel.
        tasks: task number, "1" for a job that is no array -> its usage.
    """

    owner: str
    uid: str
    text: str
    memory: float
    per_job: bool
    pe: str
    slots: tuple[int, int] | None
    tasks: dict[str, TaskUsage]


class Memory(NamedTuple):
    """All of it.

    Attributes:
        hosts: for `/qhost`.
        owners: for `/qstat`.
        left_out: jobs and tasks without what they need, such as a number.
    """

    hosts: Hosts
    owners: Owners
    left_out: int


Granted = Callable[[], Mapping[tuple[str, str], int]]  # job, and task of an array job or "" -> slots that it was given


def read_memory(
    qhost: bytes,
    qstat: bytes,
    encoding: str,
    granted: Granted | None = None,
    names: tuple[str, str] = COMMANDS,
) -> Memory:
    """Hosts and owners from what both commands printed.

    Args:
        qhost: of `qhost -j -xml`.
        qstat: of `qstat -j '*' -xml`.
        encoding: of both.
        granted: asked where these two do not tell how many slots a job was given; None where nothing tells.
        names: of both, for errors.

    Raises:
        BatchError: one of them is not what that command prints.
    """
    hosts, left_out = parse_qhost(qhost, encoding, names[0])
    jobs, left_out_too = parse_qstat(qstat, encoding, names[1])
    return Memory(*count(hosts, jobs, granted), left_out + left_out_too)


def parse_memory(text: str) -> float | None:
    """Bytes of a memory_specifier (sge_types(1)): K, M, G are powers of 1024, k, m, g of 1000; None if it is none."""
    match = _MEMORY.fullmatch(text.strip())
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
    """Hosts by name, all but "global", and how many lines of jobs were left out.

    Raises:
        BatchError: not what `qhost -j -xml` prints.
    """
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
            left_out += not _place(host, line)
    return hosts, left_out


def _place(host: PlacedHost, line: Element) -> bool:
    """Take a line of a job; whether it is one."""
    job = line.get("name", "")
    values = _values(line, "jobvalue")
    task = values.get("taskid", "")
    if not _NUMBER.fullmatch(job) or (task and not _NUMBER.fullmatch(task)):
        return False
    host.names[job] = values.get("job_owner", ""), values.get("job_name", "")
    lines = host.lines.setdefault(job, {})
    total, master = lines.get(task, Lines(0, False))
    lines[task] = Lines(total + 1, master or values.get("pe_master") == "MASTER")
    return True


def _values(element: Element, tag: str) -> dict[str, str]:
    return {child.get("name", ""): (child.text or "").strip() for child in element.iterfind(tag)}


def parse_qstat(data: bytes, encoding: str, source: str = COMMANDS[1]) -> tuple[dict[str, RequestedMemory], int]:
    """Jobs by number, and how many jobs and tasks were left out.

    Raises:
        BatchError: not what `qstat -j '*' -xml` prints.
    """
    jobs: dict[str, RequestedMemory] = {}
    left_out = 0
    path = ("detailed_job_info", "djob_info", "element")
    for element in read_elements(data, encoding, source, path, _KEPT_OF_JOB):
        number, owner = _text(element, "JB_job_number"), _text(element, "JB_owner")
        if not _NUMBER.fullmatch(number) or not owner:
            left_out += 1
            continue
        text, memory, per_job = _read_request(element.find("JB_hard_resource_list"))
        tasks: dict[str, TaskUsage] = {}
        for task in _children(element.find("JB_ja_tasks")):
            task_number = _text(task, "JAT_task_number")
            if _NUMBER.fullmatch(task_number):
                tasks[task_number] = _read_usage(task)
            else:
                left_out += 1
        slots = _read_slots(element.find("JB_pe_range"))
        pe = _text(element, "JB_pe")
        jobs[number] = RequestedMemory(owner, _text(element, "JB_uid"), text, memory, per_job, pe, slots, tasks)
    return jobs, left_out


def _read_request(resources: Element | None) -> tuple[str, float, bool]:
    """h_vmem among the hard requests: its text, its bytes, whether it is for the whole job."""
    for request in _children(resources):
        if _text(request, "CE_name") == "h_vmem":
            text = _text(request, "CE_stringval")
            memory = _number(_text(request, "CE_doubleval"))
            if memory is None:
                memory = parse_memory(text)
            return text, memory or 0.0, _text(request, "CE_consumable") == _PER_JOB
    return "", 0.0, False


def _read_slots(ranges: Element | None) -> tuple[int, int] | None:
    bounds = [
        int(text)
        for part in _children(ranges)
        for text in (_text(part, "RN_min"), _text(part, "RN_max"))
        if _NUMBER.fullmatch(text)
    ]
    return (min(bounds), max(bounds)) if bounds else None


def _read_usage(task: Element) -> TaskUsage:
    slaves: dict[str, float] = {}
    for slave in _children(task.find("JAT_task_list")):
        granted = slave.find("PET_granted_destin_identifier_list")
        host = next((_text(place, "JG_qhostname") for place in _children(granted)), "")
        used = _read_maxvmem(slave.find("PET_scaled_usage"))
        if host and used is not None:
            slaves[host] = slaves.get(host, 0.0) + used
    return TaskUsage(_read_maxvmem(task.find("JAT_scaled_usage_list")), slaves)


def _read_maxvmem(usage: Element | None) -> float | None:
    for value in _children(usage):
        if _text(value, "UA_name") == "maxvmem":
            return _number(_text(value, "UA_value"))
    return None


def _children(element: Element | None) -> Iterable[Element]:
    return () if element is None else element


def _text(element: Element, tag: str) -> str:
    return (element.findtext(tag) or "").strip()


def _number(text: str) -> float | None:
    try:
        return _sane(float(text))
    except ValueError:
        return None


def _sane(value: float) -> float | None:
    return value if 0 <= value < _HUGE else None


def count(
    hosts: Mapping[str, PlacedHost], jobs: Mapping[str, RequestedMemory], granted: Granted | None = None
) -> tuple[Hosts, Owners]:
    """Slots and memory of each job on each host, by the rules at the head of this module.

    Both commands are asked one after the other, so each may know jobs that the other does not.
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
        counted[name] = Host(num_proc=host.num_proc, mem_total=host.mem_total, jobs=on_host)
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
    """Host -> what of the job is there -> the most bytes that it used, as Grid Engine prints them."""
    used: dict[str, dict[str, float]] = {}
    for number, usage in tasks.items():
        is_array = (job, number) in masters
        host = masters.get((job, number if is_array else ""))
        if host is None:
            continue  # it is on no host, or began just now
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
    """Jobs with a line that is no slot, for their master task."""
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
        # with a pattern for a name, a job may have got any of several
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
    """Whether tasks with so many lines, that asked for least to most slots, have one too many; None if both may be."""
    if any(total > most for total in totals):
        return True
    if any(total <= least for total in totals):
        return False
    return None
