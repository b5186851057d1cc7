"""Whose a job of the archive is: a node speaks for its own rows, the batch system for the job."""

from __future__ import annotations

import itertools

import pytest

from colmet.batch.systems import JobRecord
from colmet.jobs.archive.documents import Facts, job_documents
from colmet.jobs.archive.local import LocalArchive
from colmet.jobs.archive.queries import JobFilter
from colmet.jobs.archive.rebuild import Rebuild
from colmet.jobs.columns import DONE
from tests.jobs.test_fold import tick
from tests.support.archives import Archive, records_of
from tests.support.made_up_history import START

VM, N2, EVIL, SILENT = ("vm", b"alice"), ("n2", b"alice"), ("evil", b"mallory"), ("n3", b"")


def record(**more):
    facts = {"job": 42, "system": "slurm", "batch_id": "42", "owner": "alice", "state": DONE}
    return JobRecord(**{**facts, "started": START + 5, "ended": START + 15, "batch_hosts": "vm,n2", **more})


def sent(path, order, known=(), first=False):
    """An archive with three batches of each node, in order of the nodes."""
    archive = Archive(path)
    if first:
        archive.store.join("slurm", known)
    for host, user in order:
        archive.take(records_of([tick(n, (42,), host, user=user) for n in (1, 2, 3)], archive.archiver.until))
    archive.end()
    if not first:
        archive.store.join("slurm", known)
    return archive


def rows_of(path):
    """Of each summary, the user, the hosts of it and the sum of rows."""
    with LocalArchive(str(path)) as archive:
        jobs = archive.jobs(JobFilter(), ["start", "user", "hosts", "cpu_s"]).rows
        found = {}
        for row in jobs:
            hosts = archive.job(42, row["start"]).hosts
            assert len(hosts) == row["hosts"]
            found[row["user"]] = {one["host"] for one in hosts}
        by_host = {group.keys[0]: group.jobs for group in archive.usage(JobFilter(), ["host"])}
        assert set(by_host.values()) == {1}, "each host counts once"
        return found


@pytest.mark.parametrize("order", list(itertools.permutations([VM, N2, EVIL])))
def test_a_node_neither_takes_a_job_nor_hides_it(tmp_path, order):
    sent(tmp_path / "a.sqlite", order)
    assert rows_of(tmp_path / "a.sqlite") == {"alice": {"vm", "n2"}, "mallory": {"evil"}}


@pytest.mark.parametrize("order", list(itertools.permutations([VM, EVIL, SILENT])))
def test_a_host_that_names_nobody_is_apart(tmp_path, order):
    sent(tmp_path / "a.sqlite", order)
    assert rows_of(tmp_path / "a.sqlite") == {"alice": {"vm"}, "mallory": {"evil"}, None: {"n3"}}


@pytest.mark.parametrize("first", [True, False], ids=["record first", "record last"])
@pytest.mark.parametrize("order", list(itertools.permutations([VM, EVIL, SILENT])))
def test_the_batch_system_names_the_owner_of_hosts_that_name_nobody(tmp_path, order, first):
    sent(tmp_path / "a.sqlite", order, [record(batch_hosts=None)], first)
    assert rows_of(tmp_path / "a.sqlite") == {"alice": {"vm", "n3"}, "mallory": {"evil"}}


@pytest.mark.parametrize("first", [True, False], ids=["record first", "record last"])
def test_hosts_that_the_batch_system_does_not_list_do_not_count(tmp_path, first):
    sent(tmp_path / "a.sqlite", [("evil", b""), VM, N2, ("e2", b"mallory")], [record()], first)
    assert rows_of(tmp_path / "a.sqlite") == {"alice": {"vm", "n2"}, None: {"evil"}, "mallory": {"e2"}}


def test_a_list_with_other_names_than_the_nodes_have_counts_for_nothing(tmp_path):
    sent(tmp_path / "a.sqlite", [VM, N2], [record(batch_hosts="vm-ib,n2-ib")])
    assert rows_of(tmp_path / "a.sqlite") == {"alice": {"vm", "n2"}}


def test_a_rebuilt_archive_has_the_same_owners(tmp_path):
    order = [EVIL, VM, SILENT]
    sent(tmp_path / "a.sqlite", order, [record(batch_hosts=None)])
    with Rebuild(str(tmp_path / "new.sqlite")) as rebuild:
        batches = [tick(n, (42,), host, user=user) for host, user in order for n in (1, 2, 3)]
        rebuild.take(sorted(batches, key=lambda batch: batch.time_ns))
        rebuild.finish(str(tmp_path / "a.sqlite"), None, START + 10**6)
    assert rows_of(tmp_path / "new.sqlite") == rows_of(tmp_path / "a.sqlite")


def test_documents_of_the_shared_archive_have_the_same_owners(tmp_path):
    archive = sent(tmp_path / "a.sqlite", [EVIL, VM, SILENT])
    hosts = archive.store.hosts_of(42)
    facts = record(batch_hosts=None)._asdict()
    for known, expected in (
        ((), {"alice": ["vm"], "mallory": ["evil"], None: ["n3"]}),
        ([Facts(START, facts)], {"alice": ["n3", "vm"], "mallory": ["evil"]}),
    ):
        found = job_documents(42, hosts, known).values()
        assert {one.get("user"): one["host_names"] for one in found} == expected


def test_a_number_is_the_user_of_that_number(tmp_path):
    sent(tmp_path / "a.sqlite", [("vm", b"root"), ("n2", b"0")])
    assert rows_of(tmp_path / "a.sqlite") == {"root": {"vm", "n2"}}
