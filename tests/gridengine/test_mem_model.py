"""Memory by host and job: what is counted, from answers that are whole, wrong, or hostile."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from colmet.batch.gridengine_memory import envelope
from colmet.gridengine.model import GIB, Wanted, count, natural
from colmet.gridengine.server import AnswerError, parse_envelope, parse_hosts, parse_json, parse_owners

DATA = Path(__file__).parents[1] / "data/mem"
QHOST, QSTAT = ((DATA / f"{name}.json").read_bytes() for name in ("qhost", "qstat"))
DEFINITION = {"num_proc": "8", "mem_total": "16.0G", "jobs": {}}


def hosts_and_owners():
    return parse_hosts(parse_envelope(QHOST).data), parse_owners(parse_envelope(QSTAT).data)


def counted(knows_all=True, **wanted):
    return count(*hosts_and_owners(), Wanted(**wanted), knows_all)


def by_name(memory):
    return {host.host: host for host in memory.hosts}


def gib(*values):
    return tuple(None if value is None else round(value / GIB, 3) for value in values)


def of_one(jobs, requested, **host):
    """A host with these jobs."""
    hosts = {"n1": {**DEFINITION, **host, "jobs": jobs}}
    owners = {"alice": {"uid": "1001", "jobs": requested}}
    return count(parse_hosts(hosts), parse_owners(owners), Wanted())


def on_host(count_=1, tasks=(), master=True):
    return {"jobcount": count_, "master": master, "taskid": list(tasks), "owner": "alice", "jobname": "x"}


def request(gigabytes, used):
    text = f"{gigabytes}G" if gigabytes else ""
    request = {"requested_h_vmem_strval": text, "requested_h_vmem_dblval": gigabytes * GIB}
    return {**request, "hostname": {"n1": used}}


def test_hosts_are_in_the_order_in_which_people_count():
    assert [host.host for host in counted().hosts] == ["node1", "node2", "node3", "node10"]
    assert sorted(["17.10", "17.9", "9", "a", "²"], key=natural) == ["9", "17.9", "17.10", "a", "²"]


def test_each_task_of_an_array_on_a_host_reserves_for_itself():
    one = by_name(counted(job="2"))["node1"]
    assert [(job.job, job.slots, *gib(job.used, job.reserved)) for job in one.jobs] == [
        ("2.1", 1, 0.25, 1),
        ("2.2", 1, 0, 1),
    ]


@pytest.mark.parametrize(
    ("jobcount", "tasks", "slots"),
    [(1, "12", [1, 1]), (4, "12", [4, 4]), (1, "112", [2, 1]), (2, "1112", [6, 2]), (0, "12", [1, 1])],
)
def test_an_array_whose_tasks_have_several_slots_reserves_for_all_of_them(jobcount, tasks, slots):
    used = {"1": str(int(GIB)), "2": str(int(GIB))}
    (host,) = of_one({"7": on_host(jobcount, tasks)}, {"7": request(1, used)}).hosts
    assert [(job.job, job.slots) for job in host.jobs] == [("7.1", slots[0]), ("7.2", slots[1])]
    assert gib(host.reserved, host.used) == (sum(slots), 2)


def test_a_job_of_which_nobody_says_what_it_uses_is_shown_and_counted():
    memory = of_one({"7": on_host(), "8": on_host(), "9": on_host(1, ["1", "2"])}, {
        "8": {**request(1, {}), "hostname": {}},
        "9": request(1, {"2": "0"}),
    })  # fmt: skip
    assert [(job.job, job.used, job.reserved) for job in memory.hosts[0].jobs] == [
        ("7", None, None),
        ("8", None, GIB),
        ("9.1", None, GIB),
        ("9.2", 0, GIB),
    ]
    assert memory.untold == 3 and memory.hosts[0].used == 0


@pytest.mark.parametrize("text", ["lots", "-1", "nan", "inf", "1e999x", "1" * 30, "9e99", "٣", "1G "])
def test_a_size_that_is_no_number_is_not_known_and_counted(text):
    memory = of_one({"7": on_host()}, {"7": request(1, {"master": text})})
    assert memory.hosts[0].jobs[0].used is None and memory.unread == 1
    assert of_one({}, {}, mem_total=text).unread == of_one({}, {}, num_proc=text).unread == 1


# -- what is shown --


def test_with_an_owner_sums_are_of_the_owners_jobs_and_available_is_what_all_leave():
    hosts = by_name(counted(owner="alice"))
    one = hosts["node1"]
    assert gib(one.used, one.reserved, one.available) == (4, 14, 31.3) and one.slots == 4
    assert one.jobs_left_out == 2
    assert set(hosts) == {"node1", "node2"}
    assert set(by_name(counted(owner="carol"))) == {"node2"}


# -- answers --


def test_an_envelope_is_what_our_server_makes():
    hosts, _ = hosts_and_owners()
    assert parse_envelope(json.dumps(envelope("qhost", hosts)).encode()) == (True, "", hosts)
    assert parse_envelope(json.dumps(envelope("qstat", {})).encode()) == (False, "No data for qstat", {})


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"<html>", b"[]", b"1", b"{}", b"\xff\xfe", b"[" * 5000, b"9" * 10**5),
        *(b'{"success": 1}', b'{"success": true, "data": []}', b'{"success": true, "message": 7}'),
        *(b'{"success": true, "data": {"a": NaN}}', b'{"success": true, "a": Infinity}'),
        b'{"success": true, "a": ' + b"9" * 10**4 + b"}",
    ],
    ids=lambda text: repr(text[:40]),
)
def test_what_is_no_envelope_is_refused(text):
    with pytest.raises(AnswerError):
        parse_envelope(text)


def places(value, path=()):
    """Where every value is, from the top."""
    yield path
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(one, (*path, key))


@pytest.mark.parametrize("wrong", [None, 7.5, [], {}, "text", True, -1, 10**30, [[]], {"a": {"b": 7}}], ids=repr)
@pytest.mark.parametrize(("text", "parse"), [(QHOST, parse_hosts), (QSTAT, parse_owners)], ids=["qhost", "qstat"])
def test_whatever_is_wrong_in_an_answer_it_is_counted_or_refused_with_its_place(text, parse, wrong):
    good = parse_envelope(text).data
    refused = []
    for path in list(places(good))[1:]:
        data = copy.deepcopy(good)
        parent = data
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = wrong
        hosts, owners = hosts_and_owners()
        try:
            parsed = parse(data)
        except AnswerError as err:
            refused.append((path, str(err)))
            continue
        if parse is parse_hosts:
            hosts = parsed
        else:
            owners = parsed
        memory = count(hosts, owners, Wanted())
        assert all(host.slots >= 0 and (host.used or 0) >= 0 for host in memory.hosts)
    assert all(why.startswith(f"data['{path[0]}']") and len(why) < 300 for path, why in refused) and refused


def test_numbers_have_bounds_and_names_are_cut():
    assert parse_json(b"[7]") == [7]
    hosts = parse_hosts({"n" * 5000: {**DEFINITION, "jobs": {}}})
    assert [len(name) for name in hosts] == [1024]
