"""/qhost and /qstat of Colmet's own data, for clusters without Grid Engine."""

from __future__ import annotations

import json
import os
import pwd

import numpy as np
import pytest

from colmet.common.live.summary import measure_jobs, measure_nodes
from colmet.gridengine.answers import parse_hosts, parse_owners
from colmet.gridengine.model import GIB, Wanted, count
from colmet.web.memory_answers import hosts_of, owners_of, uid_of
from tests.support.top_bed import Bed

G = 1 << 30


@pytest.fixture
def bed():
    return Bed()


def hosts_and_owners(bed):
    kept = bed.latest.look()
    jobs = measure_jobs(kept)
    nodes = measure_nodes(kept, bed.now, int((bed.now + 500) * 1e9), {})
    hosts, owners = hosts_of(jobs, nodes), owners_of(jobs, lambda user: {"bob": "1002"}.get(user, ""))
    assert parse_hosts(json.loads(json.dumps(hosts))) == hosts, "it is what clients take"
    assert parse_owners(json.loads(json.dumps(owners))) == owners
    return hosts, owners


def test_a_job_on_one_node_reserves_its_limit_and_has_used_its_peak(bed):
    row = {"user": b"bob", "cpus_allocated": 4, "memory_limit": 8 * G, "memory_peak": 3 * G, "memory_current": G}
    bed.take("n1", 10, {7: row}, procstats={0: {"meminfo_memtotal": 16 << 20}})
    hosts, owners = hosts_and_owners(bed)
    on = {"jobcount": 4, "master": True, "taskid": [], "owner": "bob", "jobname": "-"}
    assert hosts == {"n1": {"num_proc": "-", "mem_total": "16.0G", "jobs": {"7": on}}}
    asked = {"requested_h_vmem_strval": "2G", "requested_h_vmem_dblval": 2.0 * G}
    job = {**asked, "hostname": {"n1": {"master": str(3 * G)}}}
    assert owners == {"bob": {"uid": "1002", "jobs": {"7": job}}}


def test_it_is_counted_as_the_batch_systems_own_would_be(bed):
    row = {"user": b"bob", "cpus_allocated": 4, "memory_limit": 8 * G, "memory_peak": 3 * G}
    memory_row = {0: {"meminfo_memtotal": 16 << 20}}
    bed.take("n1", 10, {7: row, 8: {"user": b"eve", "memory_current": G}}, procstats=memory_row)
    (host,) = count(*hosts_and_owners(bed), Wanted()).hosts
    assert (host.reserved, host.used, host.available) == (8 * GIB, 4 * GIB, 8 * GIB)
    assert host.slots == 5 and host.share == 3 / 8


def test_a_job_on_several_nodes_has_a_request_that_is_right_for_all_of_them_together(bed):
    for name, cpus, limit in (("n1", 4, 4), ("n2", 2, 5)):
        bed.take(name, 10, {7: {"user": b"bob", "cpus_allocated": cpus, "memory_limit": limit * G}})
    hosts, owners = hosts_and_owners(bed)
    job = owners["bob"]["jobs"]["7"]
    assert job["requested_h_vmem_dblval"] == 1.5 * G and job["requested_h_vmem_strval"] == "1536M"
    assert job["hostname"] == {"n1": {}, "n2": {}}, "nobody measured what it used"
    assert [hosts[name]["jobs"]["7"]["master"] for name in ("n1", "n2")] == [False, False], "nobody says where it began"
    assert sum([host.reserved for host in count(hosts, owners, Wanted()).hosts]) == 9 * GIB


def test_what_a_job_used_on_each_of_its_nodes_is_reported_by_node(bed):
    for name, peak in (("n1", 1), ("n2", 2)):
        bed.take(name, 10, {7: {"user": b"bob", "memory_peak": peak * G}})
    job = hosts_and_owners(bed)[1]["bob"]["jobs"]["7"]
    assert job["hostname"] == {"n1": {"slave": str(G)}, "n2": {"slave": str(2 * G)}}


def test_a_job_without_a_limit_is_there_and_has_asked_for_nothing(bed):
    bed.take("n1", 10, {7: {"user": b"bob", "memory_current": G}})
    hosts, owners = hosts_and_owners(bed)
    assert hosts["n1"]["jobs"]["7"]["jobcount"] == 1, "at least one CPU is what it runs on"
    job = owners["bob"]["jobs"]["7"]
    assert (job["requested_h_vmem_strval"], job["requested_h_vmem_dblval"]) == ("", 0.0)
    assert job["hostname"] == {"n1": {"master": str(G)}}


def test_an_odd_size_is_shown_in_bytes(bed):
    bed.take("n1", 10, {7: {"user": b"bob", "cpus_allocated": 3, "memory_limit": 1000}})
    assert hosts_and_owners(bed)[1]["bob"]["jobs"]["7"]["requested_h_vmem_strval"] == "333"


def test_a_user_that_one_node_reports_counts_for_its_own_rows(bed):
    bed.take("n1", 10, {7: {"memory_current": G}})
    bed.take("n2", 10, {7: {"user": b"bob", "memory_current": G}})
    hosts, owners = hosts_and_owners(bed)
    assert set(owners) == {"bob", "-"} and hosts["n2"]["jobs"]["7"]["owner"] == "bob"
    assert hosts["n1"]["jobs"]["7"]["owner"] == "-"


def test_a_node_without_jobs_is_there_and_one_of_which_only_jobs_tell_too(bed):
    bed.take("n1", 10, procstats={0: {"meminfo_memtotal": 16 << 20}})
    bed.take("n2", 10, {0: {"memory_current": G}, 7: {"memory_current": G}})
    hosts, _ = hosts_and_owners(bed)
    assert hosts["n1"] == {"num_proc": "-", "mem_total": "16.0G", "jobs": {}}
    assert hosts["n2"]["mem_total"] == "-" and list(hosts["n2"]["jobs"]) == ["7"], "the node itself is no job"
    kept = bed.latest.look()
    assert list(hosts_of(measure_jobs(kept), [])) == ["n2"]


def test_a_number_of_processors_is_shown_where_a_row_has_one(bed):
    bed.take("n1", 10, {7: {"memory_current": G}})
    hosts = hosts_of(measure_jobs(bed.latest.look()), [{"node": "n1", "memory_total": None, "cpus": 64}])
    assert hosts["n1"]["num_proc"] == "64"


def test_users_of_this_machine_have_numbers():
    me = pwd.getpwuid(os.getuid())
    assert uid_of(me.pw_name) == str(me.pw_uid)
    assert uid_of("no such user") == uid_of("-") == uid_of("\0") == uid_of("") == ""


def test_a_sender_that_makes_values_up_makes_no_numbers_of_them(bed):
    bed.take("n1", 10, {7: {"user": b"bob", "memory_current": G, "memory_limit": G, "cpus_allocated": 2}})
    jobs = measure_jobs(bed.latest.look())
    jobs.values["cpus"][:] = np.inf
    jobs.values["memory_limit"][:] = -5.0
    jobs.values["memory"][:] = np.inf
    assert hosts_of(jobs, [])["n1"]["jobs"]["7"]["jobcount"] == 1
    job = owners_of(jobs)["bob"]["jobs"]["7"]
    assert job["requested_h_vmem_dblval"] == 0.0 and job["hostname"] == {"n1": {}}
