"""The source for Grid Engine against a real cell with two hosts: the text that its commands print, counted by hand."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from colmet.batch.answers import BatchError
from colmet.batch.gridengine import NO_QUEUE, GridEngine
from colmet.batch.gridengine_watch import CommandSource, FileSource, MemoryWatch
from tests.beds.bed import Bed, eventually
from tests.beds.programs import documents, serving

pytestmark = pytest.mark.live

# A task on every slot but the first, each with memory of its own; as an MPI does it.
PARALLEL = """
first=1
while read -r host slots rest; do
    for slot in $(seq "$slots"); do
        [ -n "$first" ] || qrsh -inherit -nostdin "$host" "$PWD/hold" 10000000 &
        first=
    done
done <"$PE_HOSTFILE"
./hold 20000000
"""
HOLD = """#!/usr/bin/perl
$held = "x" x $ARGV[0];
sleep 300;
"""
# name -> options of qsub, and the command
JOBS = {
    "single": ("-l", "h_vmem=1G", "./hold 30000000"),
    "plain": ("-v", "ODD=\x01\x1b[1m<&>", "sleep 300"),
    "array": ("-t", "1-3", "-q", "main.q@node1", "-l", "h_vmem=0.5G", "./hold 30000000"),
    "inone": ("-pe", "one", "3", "-l", "h_vmem=300M", PARALLEL),
    "across": ("-pe", "spread", "4", "-l", "h_vmem=200m", PARALLEL),
    "apart": ("-pe", "apart", "2", "-l", "h_vmem=256M", PARALLEL),
    "ranged": ("-p", "-100", "-pe", "apart", "2-9", "-l", "h_vmem=2G", "sleep 300"),
    "paired": ("-t", "1-2", "-pe", "both", "2", "-q", "main.q@node2", "-l", "h_vmem=100M", PARALLEL),
    "broken": ("-wd", "/nonexistent/directory", "sleep 300"),
    "held": ("-h", "-l", "h_vmem=1G", "sleep 300"),
    "others": ("-q", "other.q", "-t", "1-3", "-l", "h_vmem=10M", "sleep 300"),
    "waiting": ("-t", "1-9:2", "-l", "h_vmem=9G", "sleep 300"),
    "guest": ("-l", "h_vmem=256M", "./hold 30000000"),
}
USER, GUEST = "colmet-sge", "nobody"
WITHOUT_SLOTS = {"broken", "held", "waiting"}
# the first host is that of the master task; where only some of a job's processes are Grid Engine's slave tasks
ROLES = {
    "inone": [{"master", "slave"}],
    "across": [{"master", "slave"}, {"slave"}],
    "apart": [{"master"}, {"slave"}],
    "array": [{"1", "2", "3"}],
    "paired": [{"1", "2"}],
    "others": [{"1"}],
}
GROUPS = range(64100, 64300)  # of sge.sh: the processes of a job have one of them
UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
GIB = 1 << 30
DEFAULT = 64 << 20  # h_vmem that the cell counts for a slot of a job without a request


def size(text):
    """Bytes of what Grid Engine prints, or is asked for."""
    number = text.rstrip("kmgKMG")
    return float(number) * UNITS[text[len(number) :]]


def owner_of(name):
    return GUEST if name == "guest" else USER


class Cell(Bed):
    """A Grid Engine with jobs of all kinds.

    Attributes:
        jobs: name -> number of what `JOBS` has.
    """

    def __init__(self):
        super().__init__("sge")
        self.jobs = {}

    def ask(self, *command):
        """What a command prints as text."""
        done = subprocess.run(
            [self.directory / "bin" / command[0], *command[1:]], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start_jobs(self):
        """Submit all of them, and wait until all that can run do, and all that they use is reported."""
        hold = self.directory / "out/hold"  # where jobs begin
        hold.write_text(HOLD)
        hold.chmod(0o755)
        for name, options in JOBS.items():
            (self.jobs[name],) = self.submit("--as", owner_of(name), "-N", name, *options)
        expected = sorted(["r"] * 13 + ["Eqw", "hqw", "qw", "qw"])
        assert eventually(lambda: sorted(self.states().values()) == expected), self.ask("qstat", "-u", "*")
        assert eventually(self._all_used), {name: self.used(name) for name in self.jobs}

    def master(self, what):
        """Stop, start, freeze or thaw the daemon that all commands ask."""
        self._must("master", what)

    def states(self):
        """(job, tasks) -> state, of every line of qstat."""
        states = {}
        for line in self.ask("qstat", "-u", "*").splitlines()[2:]:
            number, _, _, _, state, _, _, *rest = line.split()
            tasks = rest[-1] if len(rest) > 1 + ("@" in rest[0]) else ""  # behind the queue of one that runs, and slots
            states[int(number), tasks] = state
        return states

    def _all_used(self):
        """Slave tasks begin a while after the job; each holds 10 MB, and has Perl's own."""
        used = {name: sum(self.used(name).values()) for name in self.jobs if name not in WITHOUT_SLOTS}
        return (
            all(used.values())
            and used["inone"] > 20e6 + 2 * 10e6 + 3 * 4e6
            and used["across"] > 20e6 + 3 * 10e6 + 4 * 4e6
        )

    def used(self, name):
        """Task -> bytes that it used at most, on all its hosts together, as qstat -j prints it."""
        text = self.ask("qstat", "-j", str(self.jobs[name]))
        lines = re.findall(r"^usage +([0-9]+): .*maxvmem=([0-9.]+[KMGT]?)$", text, re.M)
        return {task: size(used) for task, used in lines}

    def slots(self):
        """(host, job, task or "") -> slots, from qstat -f."""
        slots = defaultdict(int)
        host = None
        for line in self.ask("qstat", "-f", "-u", "*").splitlines():
            words = line.split()
            if line.startswith("#"):
                break  # what follows are jobs that wait
            if "@" in line:
                host = words[0].partition("@")[2]
            elif words and words[0].isdigit():
                slots[host, int(words[0]), words[8] if len(words) > 8 else ""] += int(words[7])
        return dict(slots)

    def masters(self):
        """(host, job) of the master tasks, from qhost -j."""
        masters = set()
        host = None
        for line in self.ask("qhost", "-j").splitlines():
            if line[:1].isalpha():
                host = line.split()[0]
            elif "MASTER" in line:
                masters.add((host, int(line.split()[0])))
        return masters

    def described(self):
        """Number of a job -> all that qstat -j prints of it."""
        texts = re.split("^=+$", self.ask("qstat", "-j", "*"), flags=re.M)[1:]
        return {int(re.search(r"^job_number: +(\d+)$", text, re.M)[1]): text for text in texts}

    def held(self):
        """(job, host) -> bytes that its processes there hold, as their command lines say; Perl's own come on top."""
        nodes = {}
        for node in ("node1", "node2"):
            pid = (self.directory / f"{node}.pid").read_text().strip()
            nodes[os.readlink(f"/proc/{pid}/ns/uts")] = node
        held = defaultdict(float)
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                groups = re.search("^Groups:(.*)$", (process / "status").read_text(), re.M)[1].split()
                if any(int(group) in GROUPS for group in groups):
                    host = nodes[os.readlink(process / "ns/uts")]
                    job = int(re.search(rb"(?:^|\0)JOB_ID=(\d+)", (process / "environ").read_bytes())[1])
                    command = re.search(rb"hold\0(\d+)\0$", (process / "cmdline").read_bytes())
                    held[job, host] += int(command[1]) if command else 0
        return dict(held)

    def free(self):
        """Host -> bytes of h_vmem that the master has not given away, from qhost -F."""
        text = self.ask("qhost", "-F", "h_vmem")
        return {host: size(free) for host, free in re.findall(r"^(node\d) .*\n.* hc:h_vmem=(\S+)", text, re.M)}


@contextlib.contextmanager
def grid_engine(request):
    """A cell with its jobs, whose commands are on PATH; taken down again."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def tell(text):
        with capture.global_and_fixture_disabled():
            print(text, file=sys.stderr, flush=True)

    failed_before = request.session.testsfailed
    with contextlib.ExitStack() as stack:
        cell = Cell()
        stack.callback(lambda: tell(cell.down()))
        tell("")  # ends the line that pytest has begun
        cell.up(tell)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("PATH", str(cell.directory / "bin"), prepend=os.pathsep)
        cell.start_jobs()
        yield cell
        if request.session.testsfailed > failed_before:
            tell(cell.logs())


@pytest.fixture(scope="module")
def cell(request):
    with grid_engine(request) as cell:
        yield cell


@pytest.fixture
def watch(cell):
    """What the commands of the cell tell now."""
    watch = MemoryWatch(CommandSource())
    assert watch.refresh(), watch.why
    assert watch.left_out == 0
    return watch


def counted(hosts):
    """Slots as `Cell.slots` has them, from the structure of QmemTools."""
    slots = defaultdict(int)
    for host, there in hosts.items():
        for number, job in there["jobs"].items():
            for task in job["taskid"] or [""]:
                slots[host, int(number), task] += job["jobcount"]
    return dict(slots)


def requested(owners):
    """Number of a job -> what it asked for and used, of all owners."""
    return {number: job for owner in owners.values() for number, job in owner["jobs"].items()}


def test_every_job_has_its_slots_on_its_hosts(cell, watch):
    assert counted(watch.hosts()) == cell.slots()
    found = {(host, int(job)) for host, there in watch.hosts().items() for job in there["jobs"]}
    assert {number for _, number in found} == {
        number for name, number in cell.jobs.items() if name not in WITHOUT_SLOTS
    }


def test_the_cell_has_what_makes_counting_hard(cell):
    """Or the test above says less than it seems to."""
    hosts, tasks = defaultdict(set), defaultdict(int)
    for host, job, task in cell.slots():
        hosts[job].add(host)
        tasks[job, host] += task != ""
    assert [len(hosts[cell.jobs[name]]) for name in ("across", "apart", "ranged", "inone")] == [2, 2, 2, 1]
    assert tasks[cell.jobs["array"], "node1"] == 3
    asked = cell.ask("qstat", "-j", str(cell.jobs["ranged"]))
    assert re.search(r"^parallel environment: +apart range: 2-9$", asked, re.M)
    given = sum(slots for (_, job, _), slots in cell.slots().items() if job == cell.jobs["ranged"])
    assert 2 < given < 9, "it has to have one line too many that its range does not tell"


def test_master_tasks_are_where_qhost_has_them(cell, watch):
    found = {
        (host, int(number))
        for host, there in watch.hosts().items()
        for number, job in there["jobs"].items()
        if job["master"]
    }
    assert found == cell.masters()


def test_hosts_owners_and_names_are_those_of_qhost(cell, watch):
    lines = [line.split() for line in cell.ask("qhost").splitlines()]
    printed = {line[0]: (line[2], line[7]) for line in lines if line[0].startswith("node")}
    assert {name: (host["num_proc"], host["mem_total"]) for name, host in watch.hosts().items()} == printed
    names = {str(number): name for name, number in cell.jobs.items()}
    for host in watch.hosts().values():
        for number, job in host["jobs"].items():
            assert (job["owner"], job["jobname"]) == (owner_of(names[number]), names[number])


def test_what_was_asked_for_is_what_qstat_prints(cell, watch):
    owners = watch.owners()
    assert {(owner, job) for owner in owners for job in owners[owner]["jobs"]} == {
        (owner_of(name), str(number)) for name, number in cell.jobs.items()
    }
    for name, number in cell.jobs.items():
        text = cell.ask("qstat", "-j", str(number))
        owner = owners[owner_of(name)]
        assert re.search(rf"^uid: +{owner['uid']}$", text, re.M)
        asked = re.findall(r"^hard resource_list: .*h_vmem=([^,\s]+)", text, re.M)
        job = owner["jobs"][str(number)]
        assert [job["requested_h_vmem_strval"]] == (asked or [""]), name
        assert job["requested_h_vmem_dblval"] == (size(asked[0]) if asked else 0.0), name


def test_what_is_reserved_is_what_the_master_gave_away(cell, watch):
    """h_vmem is a consumable of both hosts: the master's own sum of all jobs' requests."""
    jobs = requested(watch.owners())
    reserved = defaultdict(float)
    for (host, job, _), slots in counted(watch.hosts()).items():
        reserved[host] += slots * (jobs[str(job)]["requested_h_vmem_dblval"] or DEFAULT)
    left = {host: 8 * 2**30 - memory for host, memory in reserved.items()}
    assert left == pytest.approx(cell.free(), abs=2**20)  # printed with three digits behind the point


def test_what_is_used_is_what_qstat_prints(cell):
    """Master and slave tasks; printed as one sum for all hosts of a task, with three digits."""

    def same():
        watch = MemoryWatch(CommandSource())
        assert watch.refresh(), watch.why
        jobs = requested(watch.owners())
        for name, number in cell.jobs.items():
            used = defaultdict(float)
            for roles in jobs[str(number)]["hostname"].values():
                for role, value in roles.items():
                    used[role if role.isdigit() else "1"] += float(value)
            if used != pytest.approx(cell.used(name), rel=1e-3):
                return False  # it grows still
        return True

    assert eventually(same, 20)


def test_slave_tasks_are_on_their_own_hosts(cell, watch):
    jobs = requested(watch.owners())
    across = jobs[str(cell.jobs["across"])]["hostname"]
    assert sorted(map(sorted, across.values())) == [["master", "slave"], ["slave"]]
    roles = {host: set(there) for host, there in jobs[str(cell.jobs["array"])]["hostname"].items()}
    assert roles == {"node1": {"1", "2", "3"}}
    assert jobs[str(cell.jobs["waiting"])]["hostname"] == {}


def test_files_tell_what_the_commands_tell(cell, watch, tmp_path):
    """But for a job that asked for a range of slots: without a third command, another job has to tell."""
    (tmp_path / "qhost_qmem.xml").write_text(cell.ask("qhost", "-j", "-xml"))
    (tmp_path / "qstat_qmem.xml").write_text(cell.ask("qstat", "-j", "*", "-xml"))
    files = MemoryWatch(FileSource(str(tmp_path)))
    assert files.refresh(), files.why
    assert counted(files.hosts()) == counted(watch.hosts())


def test_jobs_are_those_of_qstat(cell):
    states = {"r": "running", "qw": "idle", "hqw": "held", "Eqw": "held"}
    expected = {
        f"{job}.{tasks}" if tasks else str(job): states[letters] for (job, tasks), letters in cell.states().items()
    }
    jobs = GridEngine().jobs()
    assert {job.id: job.state for job in jobs} == expected
    assert {job.user for job in jobs} == {USER, GUEST}
    assert all((job.runtime_s > 0) == (job.state == "running") for job in jobs)
    assert {job.queue for job in jobs if job.state == "running"} == {"main.q", "other.q"}


def test_queues_have_the_slots_that_qstat_prints(cell):
    queues = {queue.name: queue for queue in GridEngine().queues()}
    lines = [line.split() for line in cell.ask("qstat", "-g", "c").splitlines()[2:]]
    used = {line[0]: int(line[2]) for line in lines}
    assert {name: queue.cores for name, queue in queues.items()} == {**used, NO_QUEUE: 0}
    found = {name: (queue.idle, queue.running, queue.held) for name, queue in queues.items()}
    assert found == {"main.q": (0, 12, 0), "other.q": (2, 1, 0), NO_QUEUE: (5, 0, 2)}
    assert queues["main.q"].memory_mb is None  # one of its jobs asked for none
    assert queues["other.q"].memory_mb == 10


# -- colmet-facility --


def test_colmet_facility_reports_what_qstat_prints(cell):
    lines = [line.split() for line in cell.ask("qstat", "-u", "*").splitlines()[2:]]
    users = {int(line[0]): line[3] for line in lines}
    words = {"r": "running", "qw": "idle", "hqw": "held", "Eqw": "held"}
    expected = {
        f"{job}.{tasks}" if tasks else str(job): (users[job], words[letters])
        for (job, tasks), letters in cell.states().items()
    }
    queues, jobs = documents("gridengine")
    assert {number: (job["users"], job["state"]) for number, job in jobs.items()} == expected
    assert f"{cell.jobs['array']}.2" in jobs and f"{cell.jobs['waiting']}.1-9:2" in jobs
    for job in jobs.values():
        assert job.keys() == {"users", "Runtime", "state"}
        assert (job["Runtime"] > 0) == (job["state"] == "running")
    used = {line.split()[0]: int(line.split()[2]) for line in cell.ask("qstat", "-g", "c").splitlines()[2:]}
    # array tasks one by one; of those that wait, two have asked for other.q
    assert queues == {
        "main.q": {"idle": 0, "running": 12, "held": 0, "allocated_cores": used["main.q"]},
        "other.q": {"idle": 2, "running": 1, "held": 0, "allocated_cores": used["other.q"], "allocated_mem": 10},
        NO_QUEUE: {"idle": 5, "running": 0, "held": 2, "allocated_cores": 0, "allocated_mem": 0},
    }


# -- the JSON interface, and colmet mem --


class ByHand:
    """What hosts and jobs have, from text that the commands print, and from /proc.

    Attributes:
        hosts: name -> processors and memory, as printed.
        slots: (host, job, task or "") -> slots.
        masters: (host, job) of master tasks.
        names: job -> its name.
        asked: job -> h_vmem for a slot, as it was asked for; "" for one that did not.
        used: (job, host) -> least and most bytes that it may have used there: the same where that is its only host.
        tasks: (job, task) -> bytes that it used on all hosts together; "1" for a job that is no array.
    """

    def __init__(self, cell):
        lines = [line.split() for line in cell.ask("qhost").splitlines()]
        self.hosts = {line[0]: (line[2], line[7]) for line in lines if line[0].startswith("node")}
        self.slots, self.masters = cell.slots(), cell.masters()
        self.names, self.asked, self.uids, self.tasks = {}, {}, {}, {}
        for number, text in cell.described().items():
            (self.names[number],) = re.findall(r"^job_name: +(\S+)$", text, re.M)
            (uid,) = re.findall(r"^uid: +(\d+)$", text, re.M)
            self.uids[owner_of(self.names[number])] = uid
            asked = re.findall(r"^hard resource_list: .*h_vmem=([^,\s]+)", text, re.M)
            self.asked[number] = asked[0] if asked else ""
            for task, used in re.findall(r"^usage +([0-9]+): .*maxvmem=([0-9.]+[KMGT]?)$", text, re.M):
                self.tasks[number, task] = size(used)
        held = cell.held()
        self.used = {}
        for number, host in held:
            total = sum(used for (job, _), used in self.tasks.items() if job == number)
            others = [bytes_ for (job, where), bytes_ in held.items() if job == number and where != host]
            self.used[number, host] = (held[number, host] if others else total), total - sum(others)

    def reserved(self, host, jobs=None):
        return sum(
            slots * size(self.asked[job])
            for (where, job, _), slots in self.slots.items()
            if where == host and self.asked[job] and (jobs is None or job in jobs)
        )

    def taken(self, host):
        """Slots of a host."""
        return sum(slots for (where, _, _), slots in self.slots.items() if where == host)

    def qhost(self):
        """The data of /qhost."""
        data = {name: {"num_proc": host[0], "mem_total": host[1], "jobs": {}} for name, host in self.hosts.items()}
        for (host, number, task), slots in sorted(self.slots.items()):
            name = self.names[number]
            job = {"jobcount": slots, "master": (host, number) in self.masters, "taskid": []}
            job.update(owner=owner_of(name), jobname=name)
            job = data[host]["jobs"].setdefault(str(number), job)
            assert job["jobcount"] == slots, "tasks have unequal slots"
            job["taskid"] += [task] * (task != "")
        return data

    def qstat(self, with_slaves=True):
        """The data of /qstat, where each host of a job has only the set of what is there."""
        data = {user: {"uid": uid, "jobs": {}} for user, uid in self.uids.items()}
        for number, name in self.names.items():
            asked = self.asked[number]
            job = {"requested_h_vmem_strval": asked, "requested_h_vmem_dblval": size(asked) if asked else 0.0}
            on = {host for host, job, _ in self.slots if job == number}
            first = [host for host in on if (host, number) in self.masters]
            places = [*first, *sorted(on - set(first))]
            roles = dict(zip(places, ROLES.get(name, [{"master"}])))
            roles = roles if with_slaves else {host: there - {"slave"} for host, there in roles.items()}
            # a master that was restarted knows what a job uses when its host has reported it
            known = {task for job, task in self.tasks if job == number}
            known |= {"master", "slave"} if "1" in known else set()
            roles = {host: there & known for host, there in roles.items()}
            job["hostname"] = {host: there for host, there in roles.items() if there}
            data[owner_of(name)]["jobs"][str(number)] = job
        return data


def sums(owners):
    """(job, host) -> bytes that /qstat says, and (job, task) -> bytes on all hosts, "1" for one that is no array."""
    used, tasks = defaultdict(float), defaultdict(float)
    for number, job in requested(owners).items():
        for host, roles in job["hostname"].items():
            for role, text in roles.items():
                used[int(number), host] += float(text)
                tasks[int(number), role if role.isdigit() else "1"] += float(text)
    return used, tasks


def assert_as_by_hand(cell, interface, with_slaves=True):
    """/qhost and /qstat are what the text of the commands says, as soon as both are of the same moment.

    Args:
        cell: which.
        interface: that serves it.
        with_slaves: whether the master knows what slave tasks use; one that was restarted prints it only after a while.
    """
    found = []

    def same():
        hand, hosts, owners = ByHand(cell), interface.data("qhost"), interface.data("qstat")
        used, tasks = sums(owners)
        for host in hosts.values():
            for job in host["jobs"].values():
                job["taskid"].sort(key=int)
        for job in requested(owners).values():
            roles_by_host = {host: set(roles) for host, roles in job["hostname"].items()}
            if not with_slaves:
                roles_by_host = {host: roles - {"slave"} for host, roles in roles_by_host.items()}
            job["hostname"] = {host: roles for host, roles in roles_by_host.items() if roles}
        found[:] = [
            (hosts, hand.qhost()),
            (owners, hand.qstat(with_slaves)),
            (dict(tasks), pytest.approx(hand.tasks, rel=1e-3)),  # printed with three digits behind the point
        ]
        if with_slaves:
            bounded = {at: min(max(used[at], least * 0.999), most * 1.001) for at, (least, most) in hand.used.items()}
            found.append((dict(used), bounded))
        return all(one == other for one, other in found)

    if not eventually(same, 20):
        for one, other in found:
            assert one == other


@pytest.fixture(scope="module")
def interface(cell, tmp_path_factory):
    """That of a colmet-web which asks the cell."""
    log = tmp_path_factory.mktemp("collector") / "log"
    (log.parent / "web.toml").write_text("gridengine = true\n")
    with serving(log, "--http-config", str(log.parent / "web.toml")) as interface:
        assert eventually(interface.success), log.read_text()
        yield interface


def test_the_interface_returns_what_the_commands_print(cell, interface):
    assert_as_by_hand(cell, interface)


def test_the_interface_returns_what_files_hold(cell, tmp_path):
    (tmp_path / "qhost_qmem.xml").write_text(cell.ask("qhost", "-j", "-xml"))
    (tmp_path / "qstat_qmem.xml").write_text(cell.ask("qstat", "-j", "*", "-xml"))
    (tmp_path / "web.toml").write_text(f'gridengine-xml = "{tmp_path}"\n')
    with serving(tmp_path / "log", "--http-config", str(tmp_path / "web.toml")) as interface:
        assert eventually(interface.success), interface.log.read_text()
        assert_as_by_hand(cell, interface)


def rows(text):
    """The lines with columns of what colmet mem prints, without titles, dashes and legend."""
    lines = [line.split("\t") for line in text.splitlines()]
    return [line for line in lines if len(line) == 8 and line[0] != "HOSTNAME"]


def gigabytes(count):
    return f"{count / GIB:.2f}G"


def between(text, unit, least, most):
    """Whether a printed number is one of those, but for its rounding."""
    digits = text.rstrip("G")
    room = 0.51 * 10.0 ** -len(digits.partition(".")[2])
    return least * 0.999 / unit - room <= float(digits) <= most * 1.001 / unit + room


def test_colmet_mem_has_a_line_for_each_host(cell, interface):
    hand = ByHand(cell)
    out, said = interface.mem()
    titles, *lines = out.splitlines()
    assert titles.split("\t") == [*("HOSTNAME", "USAGE", "PERCENT", "USED", "RESERVED", "TOTAL", "AVAILABLE", "SLOTS")]
    assert lines[-1] == "Used (#)\tReserved (=)\tAvailable (.)"
    # no process of that job is on its second host
    assert said == "colmet mem: 1 job: its memory use on some host is not known; sums leave it out\n"
    assert [row[0] for row in rows(out)] == ["node1", "node2"]
    for host, bar, percentage, used, reserved, total, available, slots in rows(out):
        processors, memory = hand.hosts[host]
        least, most = (sum(of[n] for (_, where), of in hand.used.items() if where == host) for n in (0, 1))
        assert between(used, GIB, least, most)
        assert reserved == gigabytes(hand.reserved(host))
        assert total == gigabytes(size(memory))
        assert available == gigabytes(size(memory) - hand.reserved(host))
        assert slots == f"{hand.taken(host)}/{processors}"
        both = {job for job, where in hand.used if where == host and hand.asked[job]}
        least, most = (sum(hand.used[job, host][n] for job in both) for n in (0, 1))
        assert between(percentage, hand.reserved(host, both) / 100, least, most)
        assert re.fullmatch("#+=+[.]+", bar) and len(bar) == 40
        plain = sum(hand.used[at][0] for at in hand.used if at[1] == host and not hand.asked[at[0]])
        claimed = hand.reserved(host) + plain  # no other job uses more than it reserved
        assert abs(bar.count(".") - 40 * (1 - claimed / size(memory))) <= 1.5


def details(hand, only=lambda job, task: True):
    """Host -> what each of its lines of details has, but for what is used."""
    expected = defaultdict(list)
    for (host, job, task), slots in hand.slots.items():
        if only(job, task):
            name = hand.names[job]
            master = "Master" if (host, job) in hand.masters else ""
            reserved = gigabytes(slots * size(hand.asked[job])) if hand.asked[job] else "-"
            line = [master, f"{job}.{task}" if task else str(job), owner_of(name), name]
            expected[host].append([*line, reserved, f"{slots}/{hand.hosts[host][0]}"])
    return {host: sorted(lines) for host, lines in expected.items()}


def printed(out):
    """The same of what colmet mem prints, and (job or job.task, host) -> what is used."""
    found, used = {}, {}
    for row in rows(out):
        if row[0] in ("node1", "node2"):
            host = row[0]
            found[host] = []
        else:
            found[host].append([*row[:4], *row[6:]])
            used[row[1], host] = row[5]
    return {host: sorted(lines) for host, lines in found.items()}, used


def test_colmet_mem_has_a_line_for_each_job(cell, interface):
    hand = ByHand(cell)
    out, _ = interface.mem("-d")
    found, used = printed(out)
    assert found == details(hand)
    assert rows(interface.qmemview("-u")[0]) == rows(out)
    for host, job, task in hand.slots:
        name = f"{job}.{task}" if task else str(job)
        if (job, host) not in hand.used:
            assert used[name, host] == "-"
        elif task:
            assert between(used[name, host], GIB, hand.tasks[job, task], hand.tasks[job, task])
        else:
            assert between(used[name, host], GIB, *hand.used[job, host])


def test_colmet_mem_shows_a_host_a_job_or_an_owner(cell, interface):
    hand = ByHand(cell)
    across, array, guest = (cell.jobs[name] for name in ("across", "array", "guest"))
    out, _ = interface.mem("--host", "node2")
    assert [row[0] for row in rows(out)] == ["node2"]
    out, _ = interface.mem("-j", str(across))
    assert printed(out)[0] == details(hand, lambda job, task: job == across)
    out, _ = interface.mem("-j", f"{array}.2")
    assert printed(out)[0] == details(hand, lambda job, task: (job, task) == (array, "2"))
    out, _ = interface.mem("-u", GUEST)
    assert printed(out)[0] == details(hand, lambda job, task: job == guest)
    out, _ = interface.mem("-u", USER, "--host", "node1")
    assert printed(out)[0] == {"node1": details(hand, lambda job, task: job != guest)["node1"]}
    (line,) = [row for row in rows(interface.mem("-j", str(across), "--host", "node1")[0]) if row[0] == "node1"]
    # sums of this job alone; what is available is not what others reserved
    assert line[4] == gigabytes(hand.reserved("node1", {across}))
    assert line[6] == gigabytes(size(hand.hosts["node1"][1]) - hand.reserved("node1"))


def test_colmet_mem_as_json_has_bytes(cell, interface):
    hand = ByHand(cell)
    for host in json.loads(interface.mem("--json")[0])["hosts"]:
        processors, memory = hand.hosts[host["host"]]
        total, reserved = size(memory), hand.reserved(host["host"])
        expected = (int(processors), hand.taken(host["host"]), total, reserved, total - reserved)
        keys = ("processors", "slots", "total", "reserved", "available")
        assert tuple(host[key] for key in keys) == pytest.approx(expected)


# -- tests that change the cell --


def test_a_job_that_is_suspended_is_held_and_keeps_its_slot(cell):
    number = cell.jobs["single"]
    cell.ask("qmod", "-sj", str(number))
    assert eventually(lambda: cell.states()[number, ""] == "s", 20), cell.ask("qstat")
    assert {job.id: job.state for job in GridEngine().jobs()}[str(number)] == "held"
    queue = next(queue for queue in GridEngine().queues() if queue.name == "main.q")
    assert (queue.running, queue.held) == (11, 1)
    assert queue.cores == sum(slots for (_, job, _), slots in cell.slots().items() if job != cell.jobs["others"])


@pytest.fixture
def stop_master(cell):
    """Stops or freezes the master; it works again in the end."""
    done = []

    def change(what):
        cell.master(what)
        done.append(what)

    yield change
    for what in done:
        cell.master({"stop": "start", "freeze": "thaw"}[what])


def test_without_a_master_the_error_says_so_and_the_last_answer_stays(watch, stop_master):
    known = watch.hosts(), watch.owners()
    stop_master("stop")
    with pytest.raises(BatchError, match=r"qstat .*returned 1: error: .*; is the master up\?"):
        GridEngine().jobs()
    assert not watch.refresh()
    assert "unable to send message to qmaster" in watch.why
    assert (watch.refreshes, watch.failures) == (1, 1)
    assert (watch.hosts(), watch.owners()) == known


@pytest.mark.parametrize("how", ["stop", "freeze"])
@pytest.mark.slow
def test_without_a_master_the_interface_returns_the_last_answer_for_a_while_and_comes_back(
    cell, interface, stop_master, how
):
    """The last test: jobs go on all the time. No answer is slow; `Interface` sees to that."""
    assert eventually(interface.success, 150)
    stop_master(how)
    before = interface.data("qhost")  # the last answer before may have been asked for just now
    assert before and interface.data("qhost") == before
    assert eventually(lambda: not interface.success(), 150)
    cell.master({"stop": "start", "freeze": "thaw"}[how])
    assert eventually(interface.success, 150), interface.log.read_text()
    assert_as_by_hand(cell, interface, with_slaves=False)
