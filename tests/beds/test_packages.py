"""docs/install.md, to the letter, in a Debian of its own: packages, units, pip, removal."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.beds.machine import Machine, tell
from tests.support.packages import PICTURES, ROOMS, RUN, imports, programs_of, run, sources

ROOT = Path(__file__).parents[2]
# The commands of the page, by the word behind ```sh; what is not to be run as it stands has none.
BLOCKS = dict(re.findall(r"^```sh ([\w-]+)\n(.*?)^```$", (ROOT / "docs/install.md").read_text(), re.M | re.S))
RECIPES = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```$", (ROOT / "docs/recipes.md").read_text(), re.M | re.S))
CONFIGURATIONS = re.findall(r"^```toml \S+\n(.*?)^```$", (ROOT / "docs/recipes.md").read_text(), re.M | re.S)
PLAYBOOK_OF_KEYS = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/keys.md").read_text(), re.M | re.S)[0]
KEYS_OF_FACILITY = re.findall(r"^```sh keys\n(.*?)^```$", (ROOT / "docs/tools/facility.md").read_text(), re.M | re.S)[0]
FACILITY = re.findall(r"^```sh set-up\n(.*?)^```$", (ROOT / "docs/tools/facility.md").read_text(), re.M | re.S)[0]
# What a container lacks, and what is said without keys.
# Programs in the kernel: the machine of these tests may not load them.
KNOWN = (
    *("no exit records", "no fork events", "no collector is named", "kernel.task_delayacct is 0"),
    "tasks are added up from netlink",
)
CONTAINED = ("container", "task ends", "cgroups")
# Stands for ssh to 100 nodes: node-001 is this machine, the others get their files and have no daemon.
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift 2; done
[ "$1" != node-001 ] || exec sh -c "$2"
cat > /dev/null
"""
# exit status 0 where alice has a login to the page of docs/recipes.md
LOGS_IN = """python3 - <<'END' | grep -q alice
import base64, urllib.request
request = urllib.request.Request("http://127.0.0.1:8080/api/v1/whoami")
request.add_header("Authorization", "Basic " + base64.b64encode(b"alice:secret").decode())
print(urllib.request.urlopen(request).read().decode())
END"""
# exit status 0 where a file has rows of this node
HAS_ROWS = """python3 - <<'END'
import glob, socket, sys
sys.path += glob.glob("/opt/colmet/lib/python3*/site-packages")
import tables
rows = 0
for name in glob.glob("/var/lib/colmet/*.hdf5"):
    with tables.open_file(name) as file:
        for table in file.walk_nodes("/job_0", "Table") if "/job_0" in file else ():
            rows += sum(row["hostname"].decode() == socket.gethostname() for row in table)
print("rows", rows)
sys.exit(rows < 10)
END"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory, request):
    """With the source in /root."""
    directory = tmp_path_factory.mktemp("packages")
    capture = request.config.pluginmanager.getplugin("capturemanager")
    made = Machine(directory, "python3-venv", "ca-certificates")
    try:
        with capture.global_and_fixture_disabled():
            tell("\npackages bed: making a Debian")
            made.make()
        source = made.root / "root"
        subprocess.run(["bash", "-c", f". scripts/building.sh && copy_source '{source}'"], cwd=ROOT, check=True)
        made.boot()
        with capture.global_and_fixture_disabled():
            tell("packages bed: up")
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    directory = tmp_path_factory.mktemp("dist")
    assert BLOCKS["build"].strip() == "make deb" and "scripts/build-debs.sh dist" in (ROOT / "Makefile").read_text()
    done = subprocess.run(
        [ROOT / "scripts/build-debs.sh", directory], capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return sorted(directory.glob("*.deb"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    assert BLOCKS["wheel"].strip() == "make wheel" and "scripts/build-wheel.sh dist" in (ROOT / "Makefile").read_text()
    done = subprocess.run(
        [ROOT / "scripts/build-wheel.sh", directory, "/usr/bin/python3"],
        capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return next(directory.glob("*.whl"))


def assert_measures(machine):
    """Both daemons run from their units, what was measured is stored, and nobody has failed."""
    for unit in ("colmet-node", "colmet-collector"):
        machine.wait_for(f"systemctl is-active --quiet {unit}")
        assert machine.run(f"systemctl show -P NRestarts {unit}").strip() == "0", machine.logs()
    machine.wait_for(HAS_ROWS)
    journal = machine.run("journalctl -b --no-pager -u colmet-node -u colmet-collector")
    lines = re.findall(r" (?:WARNING|ERROR) [\w.]+: (.*)", journal)
    # a collector that is started last, or again, is away for a moment
    assert lines and not [text for text in lines if not text.startswith((*KNOWN, "collector is "))]
    pid = machine.run("systemctl show -P MainPID colmet-collector").strip()
    status = machine.run(f"cat /proc/{pid}/status")
    assert re.search(r"^CapEff:\t0+$", status, re.M) and not re.search(r"^Uid:\t0", status, re.M)
    # as OAR's REST API asks, under a user who is in the collector's group (docs/sites/oar.md); others cannot read
    machine.run("id oar 2>/dev/null || useradd -r oar; usermod -aG colmet oar")
    assert machine.run("runuser -u nobody -- ls /var/lib/colmet 2>&1 || true").endswith("Permission denied\n")
    prefix, arguments = "/var/lib/colmet/colmet", "0 0 9999999999 loadavg_1min,meminfo_memtotal"
    said = machine.run(f"runuser -u oar -- $(command -v colmet-extract) {prefix} {arguments} | gunzip")
    extracted = json.loads(said)
    assert (
        len(extracted["timestamp"]) == len(extracted["meminfo_memtotal"]) > 0 and min(extracted["meminfo_memtotal"]) > 0
    )


def assert_nothing_to_cure(machine):
    """The doctor has nothing against either daemon, but what it has against a container."""
    findings = json.loads(machine.run("colmet doctor --json", check=False))["findings"]
    by_name = {(one["daemon"], one["check"]): one for one in findings}
    assert by_name["collector", "unit"]["found"] == "colmet-collector.service: active, enabled"
    assert not [one for one in findings if one["level"] == "fail" and one["check"] not in CONTAINED], findings
    assert {side for side, _ in by_name} == {"node", "collector"}


def assert_waits_for_a_collector(machine):
    """The collector has keys and listens; the node measures nothing before one is named to it."""
    machine.wait_for("systemctl is-active --quiet colmet-collector colmet-node")
    machine.wait_for("systemctl show -P StatusText colmet-node | grep -q 'no collector is named'")
    assert "waits to be enrolled" in machine.run("colmet status node")
    # with its level, and one time a line
    lines = machine.run("journalctl -b -p warning -o cat --no-pager -u colmet-node")
    assert "WARNING colmet.node.main: no collector is named" in lines.splitlines()[0], lines
    listed = machine.run("stat -c '%U %a %n' /etc/colmet/keys/*").splitlines()
    assert "colmet 600 /etc/colmet/keys/collector.secret" in listed and "root 755 /etc/colmet/keys/nodes" in listed
    assert not machine.run("find /etc/colmet/keys/nodes /var/spool/colmet -mindepth 1")
    assert "keys are off" not in machine.run("journalctl -b --no-pager -u colmet-collector")


def assert_ports_are_held(machine):
    """A user of the machine cannot have them while the collector is away, and a node's data comes afterwards."""
    taken = "import socket; s = socket.socket(); s.setsockopt(1, 2, 1); s.bind(('127.0.0.1', %d))"
    machine.run("systemctl kill -s KILL colmet-collector")
    for port in (5556, 5557):
        said = machine.run(f'runuser -u nobody -- python3 -c "{taken % port}" 2>&1 || true')
        assert "Address already in use" in said
    machine.wait_for("systemctl is-active --quiet colmet-collector")
    machine.run("systemctl reset-failed colmet-collector; systemctl restart colmet-collector")
    used = (
        "journalctl -b --no-pager _PID=$(systemctl show -P MainPID colmet-collector) | grep -c 'service manager used'"
    )
    machine.wait_for(f'test "$({used})" = 2')


def assert_the_agent_has_a_user_of_its_own(machine):
    """One that goes on with what an agent of root has kept."""
    for user in ("colmet-node", "root", "colmet-node"):  # as a drop-in says, and back
        machine.run("systemctl stop colmet-node")
        if user == "root":  # the places of before
            machine.run("mv /run/colmet/node/taskstats.state /run/colmet/; chown -R root: /run/colmet/taskstats.state")
            machine.run("mkdir -p /run/systemd/system/colmet-node.service.d")
            machine.run("printf '[Service]\\nUser=root\\n' > /run/systemd/system/colmet-node.service.d/user.conf")
        else:
            machine.run("rm -f /run/systemd/system/colmet-node.service.d/user.conf")
        machine.run("systemctl daemon-reload; systemctl start colmet-node")
        machine.wait_for("test -s /run/colmet/node/taskstats.state")
        pid = machine.run("systemctl show -P MainPID colmet-node").strip()
        status = machine.run(f"cat /proc/{pid}/status")
        assert re.search(rf"^Uid:\t{machine.run(f'id -u {user}').strip()}\t", status, re.M)
        assert int(re.search(r"^CapEff:\t(\w+)$", status, re.M)[1], 16) & 1 << 12, "no CAP_NET_ADMIN"
        owners = machine.run("find /run/colmet/node /var/spool/colmet /var/lib/colmet-node -printf '%u\\n' | sort -u")
        assert owners.split() == [user]
        machine.run("colmet status node")


def assert_the_page_has_a_user_of_its_own(machine):
    """One that reads what the collector wrote, writes nothing, and has no keys."""
    machine.run("echo secret | colmet access /etc/colmet/users add root --group admin --password-stdin")
    machine.run("systemctl enable --now colmet-web")
    fetch = """python3 -c 'import urllib.request as u, base64; r = u.Request("http://127.0.0.1:8080/api/v1/nodes")
r.add_header("Authorization", "Basic " + base64.b64encode(b"root:secret").decode())
print(u.urlopen(r).read().decode())'"""
    machine.wait_for(f"{fetch} | grep -q '\"total\":1'")
    pid = machine.run("systemctl show -P MainPID colmet-web").strip()
    status = machine.run(f"cat /proc/{pid}/status")
    uid = machine.run("id -u colmet-web").strip()
    assert re.search(rf"^Uid:\t{uid}\t{uid}", status, re.M) and re.search(r"^CapEff:\t0+$", status, re.M)
    group = machine.run("getent group colmet | cut -d: -f3").strip()
    inside = f"nsenter -t {pid} -m setpriv --reuid colmet-web --regid colmet-web --groups {group}"
    machine.run(f"{inside} sh -c 'head -c 8 $(ls /var/lib/colmet/*.hdf5 | head -1)' | grep -q HDF")
    for attempt in (
        "cat /etc/colmet/keys/collector.secret",
        "ls /etc/colmet/keys",
        "touch /var/lib/colmet/x",
        "sh -c 'echo >> $(ls /var/lib/colmet/*.hdf5 | head -1)'",
        "touch /etc/colmet/x",
        "touch /run/colmet/x",
        "cat /var/lib/colmet/colmet.journal/lock",
    ):
        said = machine.run(f"{inside} {attempt} 2>&1 || echo refused")
        assert said.endswith("refused\n"), (attempt, said)
    line = re.search(r"colmet-web.service +([0-9.]+) ", machine.run("systemd-analyze security --no-pager"))
    assert float(line[1]) <= 1.2
    lines = machine.run("journalctl -b --no-pager -u colmet-web")
    assert not re.findall(r" (?:WARNING|ERROR) [\w.]+: (.*)", lines), lines
    restart = machine.run("systemctl restart colmet-collector; systemctl is-active colmet-collector")
    assert restart.strip() == "active"
    machine.wait_for(f"{fetch} | grep -q '\"total\":1'")


def assert_a_hundred_nodes_have_keys(machine):
    """By the recipe, of which one is this machine."""
    (machine.root / "usr/local/bin/ssh").write_text(SSH)
    machine.run("chmod +x /usr/local/bin/ssh")
    machine.run(RECIPES["keys"])
    found = machine.run(RECIPES["keys-check"])
    assert found.startswith("100\n"), found
    machine.wait_for("colmet status node | grep -Eq '^batches: .* sent, [1-9][0-9,]* acknowledged'")


def assert_old_data_is_removed(machine):
    """By the recipe of retention: the collector takes its options."""
    (machine.root / "etc/colmet/collector.toml").write_text(CONFIGURATIONS[0])
    machine.run(RECIPES["retention"])
    pid = machine.run("systemctl show -P MainPID colmet-collector")
    machine.run(RECIPES["retention-on"])
    assert machine.run("systemctl show -P MainPID colmet-collector") != pid
    machine.wait_for("systemctl is-active --quiet colmet-collector")


def assert_a_user_logs_in(machine):
    """At the page of the recipe for login nodes, after the start of its unit; the proxy in front is the site's."""
    (machine.root / "etc/colmet/collector.toml").write_text(CONFIGURATIONS[1])
    (machine.root / "etc/colmet/web.toml").write_text(CONFIGURATIONS[2])
    machine.run(f"echo secret | {RECIPES['access'].strip()} --password-stdin")
    machine.run(RECIPES["access-restart"])
    machine.wait_for(LOGS_IN)


def assert_gone(machine):
    assert not machine.run("ls -d /run/systemd/units/invocation:colmet* 2>/dev/null || true").strip()
    assert not machine.run("find /etc/systemd/system -name 'colmet*'")
    assert "not-found" in machine.run("systemctl show -P LoadState colmet-node colmet-collector colmet-facility")


def assert_commands_have_manuals_and_completion(machine):
    files = machine.run("dpkg -L colmet-node colmet-collector colmet-common").split()
    for command in machine.run("ls /usr/bin | grep -E '^(colmet|qmemview)' | grep -v [.]py").split():
        assert [file for file in files if re.fullmatch(rf"/usr/share/man/man[18]/{command}\.[18]\.gz", file)], command
        assert f"/usr/share/bash-completion/completions/{command}" in files


@pytest.mark.parametrize("package", ROOMS)
def test_a_package_and_what_it_depends_on_import_every_module_and_run_every_command(packages, package, tmp_path):
    """The files of the package and of colmet-common alone, with the Python modules of their dependencies."""
    for path in packages:
        if path.name.startswith((f"{package}_", "colmet-common_")):
            subprocess.run(["dpkg-deb", "-x", path, tmp_path], check=True)
    (installed,) = (tmp_path / "usr/lib").glob("python3*/dist-packages")
    rooms, fields = ROOMS[package]
    where = f"import colmet; assert colmet.__file__.startswith({str(installed)!r}), colmet.__file__\n"
    run(
        package,
        where + imports([name for name in sources(rooms) if name not in PICTURES]),
        *fields,
        path=str(installed),
    )
    run(package, where + RUN.format(programs=programs_of(package)), path=str(installed))
    for path in (tmp_path / "usr/bin").iterdir():
        assert path.stat().st_mode & 0o111, path


def test_the_packages_start_both_daemons_and_go_again(machine, packages):
    (machine.root / "root/dist").mkdir()
    for package in packages:
        shutil.copy(package, machine.root / "root/dist")
    machine.run("apt-get update", fetch=True)
    machine.run(BLOCKS["node"] + BLOCKS["collector"], fetch=True)
    assert_waits_for_a_collector(machine)
    machine.run(BLOCKS["one-machine"])
    machine.run(BLOCKS["first-node"])
    machine.run(BLOCKS["first-check"])
    assert_measures(machine)
    assert_nothing_to_cure(machine)
    assert_ports_are_held(machine)
    assert_the_agent_has_a_user_of_its_own(machine)
    assert_the_page_has_a_user_of_its_own(machine)
    assert_commands_have_manuals_and_completion(machine)

    machine.run("systemctl reload colmet-collector colmet-node")
    machine.wait_for("test $(ls /var/lib/colmet/*.hdf5 | wc -l) -ge 2")  # SIGHUP starts the next file
    machine.run("systemctl is-active colmet-node colmet-collector")

    for unit, most in (("colmet-node", 2.6), ("colmet-collector", 1.2)):
        assert not machine.run(f"systemd-analyze verify --man=no {unit}.service")
        line = re.search(rf"{unit}.service +([0-9.]+) ", machine.run("systemd-analyze security --no-pager"))
        assert float(line[1]) <= most

    machine.run(BLOCKS["facility"], fetch=True)
    state = "systemctl show -P UnitFileState -P ActiveState colmet-facility"
    assert sorted(machine.run(state).split()) == ["disabled", "inactive"]
    assert "/etc/colmet" in machine.run("dpkg -L colmet-facility").split(), "it may be the only package"
    options = (
        "--cluster MYSITE --ssh --host --disk / --zeromq-uri tcp://127.0.0.1:5556 --key-file /etc/colmet/facility.key"
    )
    typed = FACILITY.replace("install ", "echo TOKEN | install ").replace("editor", f"echo 'OPTIONS=\"{options}\"' >")
    machine.run(KEYS_OF_FACILITY)
    machine.run(typed)
    assert machine.run("runuser -u colmet-facility -- cat /etc/colmet/facility.token") == "TOKEN\n"
    machine.wait_for("systemctl show -P StatusText colmet-facility | grep -qx 'runs: 1, incomplete: 0'")
    assert not machine.run("systemd-analyze verify --man=no colmet-facility.service")
    line = re.search(r"colmet-facility.service +([0-9.]+) ", machine.run("systemd-analyze security --no-pager"))
    assert float(line[1]) <= 2
    lines = re.findall(r" (?:WARNING|ERROR) [\w.]+: (.*)", machine.run("journalctl -b --no-pager -u colmet-facility"))
    assert not [text for text in lines if not text.startswith("encryption is off")], lines
    command = "env STATE_DIRECTORY=/tmp colmet-facility --cluster X --host --disk / --disk /home --json-lines"
    said = machine.run(f"systemd-run --quiet --pipe -p ProtectHome=read-only -p PrivateTmp=yes {command}").splitlines()
    devices = {one["mount"]: one.get("device") for one in map(json.loads, said) if one["kind"] == "DISK"}
    assert devices["/"] and devices["/home"] is None, "the unit itself has made a mount of it"
    before = machine.run("systemctl show -P MainPID colmet-facility")
    machine.run(BLOCKS["facility"].replace("install", "install --reinstall"), fetch=True)
    machine.wait_for("systemctl show -P StatusText colmet-facility | grep -q 'runs: '")
    assert machine.run("systemctl show -P MainPID colmet-facility") != before, "an upgrade starts it again"

    # a collector that was set up without keys stays so over an upgrade: its nodes have none
    machine.run("rm -r /etc/colmet/keys; echo '# keys are off' >> /etc/colmet/collector.toml")
    machine.run(BLOCKS["collector"].replace("install", "install --reinstall"), fetch=True)
    machine.wait_for("systemctl is-active --quiet colmet-collector")
    pid = machine.run("systemctl show -P MainPID colmet-collector").strip()
    machine.wait_for(f"journalctl -b --no-pager _PID={pid} | grep -q 'keys are off'")
    assert not machine.run("ls -d /etc/colmet/keys 2>/dev/null || true")

    machine.run(BLOCKS["remove"])
    assert_gone(machine)
    assert machine.run("ls /var/lib/colmet/*.hdf5"), "what was measured is gone"


@pytest.mark.slow
def test_the_playbooks_of_the_recipes_set_up_both_daemons_and_nagios_sees_them(machine, packages):
    """As the machine `head`, which is node-001 as well; the inventory has only these."""
    names = {"hosts.ini": "[collector]\nhead\n[nodes]\nnode-001\n[all:vars]\nansible_connection=local\n"}
    names["colmet.yml"], names["keys.yml"] = RECIPES["colmet.yml"], PLAYBOOK_OF_KEYS
    (machine.root / "root/dist").mkdir(exist_ok=True)
    for package in packages:
        shutil.copy(package, machine.root / "root/dist")
    for name, text in names.items():
        (machine.root / "root" / name).write_text(text)
    machine.run("rm -rf /var/lib/colmet /run/colmet /etc/colmet; echo 127.0.0.1 head node-001 >> /etc/hosts")
    name = machine.run("hostname").strip()
    machine.run("hostname head")
    machine.run("apt-get update; apt-get install -y --no-install-recommends ansible-core", fetch=True)
    (machine.root / "root/inventory.ini").write_text(RECIPES["hosts.ini"])
    inventory = json.loads(machine.run("ansible-inventory -i inventory.ini --list"))
    assert inventory["collector"]["hosts"] == ["head"] and len(inventory["nodes"]["hosts"]) == 100
    assert "failed=0" in machine.run(RECIPES["ansible"], fetch=True, timeout=600)
    machine.run("hostname node-001; systemctl restart colmet-node")  # the other one
    machine.wait_for(HAS_ROWS)
    said = machine.run(RECIPES["ansible"], timeout=600)
    assert re.findall(r"changed=(\d+)", said) == ["0", "0"], said
    said = machine.run("ansible-playbook -i hosts.ini keys.yml", timeout=600)  # what the role does with keys
    assert re.findall(r"changed=(\d+)", said) == ["0", "0"], said
    assert 'hdf5-keep = "90d"' in machine.run("cat /etc/colmet/collector.toml")

    machine.run(RECIPES["nagios"] + "apt-get install -y --no-install-recommends nagios-nrpe-plugin", fetch=True)
    for daemon in ("collector", "node"):
        command = RECIPES["check"].replace("_collector", f"_{daemon}").strip()
        said = machine.run(f"runuser -u nobody -- {command} && echo status 0 || echo status $?")
        assert re.match(rf"COLMET {daemon.upper()} (OK|WARNING) - .* \|", said), said
        assert said.endswith(f"status {0 if ' OK ' in said else 1}\n")
    machine.run("systemctl stop colmet-collector.socket colmet-collector")
    said = machine.run(f"{RECIPES['check'].strip()} || echo status $?")
    assert said.startswith("COLMET COLLECTOR CRITICAL") and said.endswith("status 2\n")
    machine.run(BLOCKS["remove"])
    assert_gone(machine)
    machine.run(f"hostname {name}; rm -rf /var/spool/colmet/*")  # batches of these names


@pytest.mark.slow
def test_the_recipes_of_keys_retention_and_logins_run(machine, packages, tmp_path):
    """As the machine `head`, which is node-001 as well."""
    (machine.root / "root/dist").mkdir(exist_ok=True)
    for package in packages:
        shutil.copy(package, machine.root / "root/dist")
    machine.run("rm -rf /var/lib/colmet /run/colmet /etc/colmet; echo 127.0.0.1 head >> /etc/hosts")
    machine.run("sleep 1.1; journalctl --rotate; journalctl --vacuum-time=1s")  # what earlier tests made daemons log
    name = machine.run("hostname").strip()
    machine.run("hostname node-001; apt-get update", fetch=True)
    machine.run(BLOCKS["node"] + BLOCKS["collector"], fetch=True)
    assert_waits_for_a_collector(machine)
    assert_a_hundred_nodes_have_keys(machine)
    assert_old_data_is_removed(machine)
    assert_a_user_logs_in(machine)
    machine.run(BLOCKS["remove"])
    assert_gone(machine)
    machine.run(f"hostname {name}; rm -rf /var/spool/colmet/* /usr/local/bin/ssh")


@pytest.mark.slow
def test_pip_and_the_units_start_both_daemons_and_go_again(machine, wheel):
    (machine.root / "root/dist").mkdir(exist_ok=True)
    shutil.copy(wheel, machine.root / "root/dist")
    machine.run("rm -rf /var/lib/colmet /run/colmet /etc/colmet", check=False)
    machine.run("journalctl --rotate; journalctl --vacuum-time=1s", check=False)  # what the packages' daemons said
    machine.run(BLOCKS["pip"], fetch=True)
    machine.run(BLOCKS["pip-node"])
    machine.run(BLOCKS["pip-collector"])
    machine.run(BLOCKS["one-machine"])
    machine.run(BLOCKS["first-node"])
    machine.run(BLOCKS["first-check"])
    assert_measures(machine)
    for command in ("colmet report", "colmet completion bash", "qmemview.py", "colmet-facility", "afmetrics_collector"):
        machine.run(f"{command} --help")
    machine.run(BLOCKS["pip-remove"])
    assert_gone(machine)
    assert not machine.run("find /usr/local/bin -name 'colmet*' -o -name 'qmemview*'").strip()
