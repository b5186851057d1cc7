"""The Slurm of each release on its machine: a job is found, with user, CPU time and memory, and its end is archived.

`make test-machines` runs this.
"""

from __future__ import annotations

import json

import pytest

from tests.beds.machines.machines import V1, Machine
from tests.beds.machines.truth import LEAST, MIB, MOST, Stored, cpu_ns

MACHINES = {"trixie": (), "bookworm-backports": (), "bullseye": V1}  # Slurm 24.11, 22.05, 20.11
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PLACE = "/var/lib/bed"
MEMORY = 200 * MIB
SPIN_S = 30  # what ends between two readings of a slow machine is little beside it
USER = 1000
SLURM = f"""ClusterName=bed
SlurmctldHost=NAME(127.0.0.1)
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation={PLACE}/state
SlurmdSpoolDir={PLACE}/spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=400
ReturnToService=2
SlurmdTimeout=3000
MessageTimeout=90
PartitionName=bed Nodes=NAME Default=YES
NodeName=NAME NodeAddr=127.0.0.1 CPUs=2 RealMemory=800
"""
CGROUP = """ConstrainCores=yes
ConstrainRAMSpace=yes
"""
# What is in the cgroup of a job, as of its last moment.
WATCH = """import glob, json, time
def places():
    return glob.glob("/sys/fs/cgroup/*/slurm*/uid_*/job_*") + glob.glob("/sys/fs/cgroup/system.slice/*/job_*")
while not places():
    time.sleep(0.1)
files = {}
while found := places():
    for name in ("cpu.stat", "memory.peak", "cpuacct.usage", "memory.max_usage_in_bytes"):
        for place in found:
            try:
                with open(f"{place}/{name}") as file:
                    files[name] = file.read()
            except OSError:
                pass
    time.sleep(0.02)
files.pop("cpu.stat" if "cpuacct.usage" in files else "", None)
with open("/root/watched", "w") as file:
    json.dump(files, file)
"""
WORK = f"""#!/usr/bin/python3
import time
memory = bytearray({MEMORY})
del memory
while time.process_time() < {SPIN_S}:
    pass
time.sleep(12)
"""


@pytest.fixture(scope="module", params=MACHINES)
def machine(request):
    """With a Slurm of one node, and both daemons."""
    made = Machine(f"slurm-{request.param}", request.param, *MACHINES[request.param], packages=PACKAGES, MEMORY="1536")
    try:
        made.start()
        for name, text in (("slurm", SLURM), ("cgroup", CGROUP)):
            made.write(f"/etc/slurm/{name}.conf", text.replace("NAME", made.name))
        made.write("/root/watch.py", WATCH)
        made.write(f"{PLACE}/work", WORK)
        made.run(
            f"mkdir -p {PLACE}/state {PLACE}/spool; chown slurm {PLACE}/state; chmod 755 {PLACE}/work; "
            f"useradd -m -u {USER} alice; "
            "systemctl restart munge && systemctl restart slurmctld && systemctl restart slurmd"
        )
        made.wait_for("sinfo -h -N -o %T | grep -q idle", 300)
        made.one_machine()
        yield made
    finally:
        made.drop()


def test_a_job_is_found_with_its_user_its_use_and_its_end(machine, tmp_path, capsys):
    machine.run("systemd-run --unit=watch python3 /root/watch.py")
    as_user = f"cd /tmp && setpriv --reuid={USER} --regid={USER} --clear-groups"
    job = int(machine.run(f"{as_user} sbatch --parsable {PLACE}/work"))
    machine.wait_for("! systemctl is-active --quiet watch && test -s /root/watched", 600)
    jobs = f"colmet jobs --all-users --job {job} --json"
    machine.wait_for(f"{jobs} | grep -q alice && ! {jobs} --state running | grep -q alice")
    files = json.loads(machine.run("cat /root/watched"))
    (summary,) = json.loads(machine.run(jobs))["jobs"]
    release = machine.run("sinfo --version").strip()
    machine.run("systemctl stop colmet-node && systemctl stop colmet-collector.socket colmet-collector")
    machine.get("/var/lib/colmet", tmp_path / "stored")
    stored = Stored(tmp_path / "stored")
    try:
        tasks, group = stored.last(job, "taskstats_default"), stored.last(job, "cgroup_default")
    finally:
        stored.close()
    percent = 100 * int(tasks["cpu_total"]) / cpu_ns(files)
    peak = int(files.get("memory.peak", files.get("memory.max_usage_in_bytes", -1)))
    with capsys.disabled():
        print(
            f"\n{machine.name}, {machine.kernel}, {release}: CPU time {percent:.1f} % of "
            f"{cpu_ns(files) / 1e9:.2f} s, memory peak {int(group['memory_peak']) / MIB:.1f}/{peak / MIB:.1f} MiB, "
            f"user {group['user'].decode()}, in the archive {summary['state']}"
        )
    assert LEAST <= percent <= MOST
    assert abs(int(group["memory_peak"]) - peak) <= 0.005 * peak
    assert int(group["user"]) == USER
    assert summary["user"] == "alice" and summary["state"] in ("done", "ended")
