"""colmet-node --once: an administrator's first command on a node."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colmet.common.daemon.startup import load
from colmet.common.errors import BackendUnavailable, ConfigError, ParseError
from colmet.common.host.host import Host
from colmet.common.schema import Field, Sample, Schema, Table
from colmet.node import once
from colmet.node.backend import InputBackend
from colmet.node.backends import NAMES
from colmet.node.jobs.places import DEFAULT_PATTERN, compile_patterns
from colmet.node.jobs.source import JobSource
from colmet.node.main import build_parser

COMMAND = [sys.executable, "-m", "colmet.node.main", "--once"]


def run(*arguments, **options):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=60, **options)


class Fake(InputBackend):
    """A backend that does what its class attributes say."""

    name = "fake"
    schema = Schema("fake_default", "job", [Field("cpu", "nsec", "counter"), Field("mem", "kbytes", "gauge")])
    why_not = ""
    wanted = True
    closed = 0

    @classmethod
    def add_options(cls, parser):
        parser.add_argument("--enable-fake", action="store_true")

    @classmethod
    def from_options(cls, options, host):
        return cls() if cls.wanted else None

    def open(self):
        if self.why_not:
            raise BackendUnavailable(self.why_not)

    def sample(self, jobs):
        return [Sample(job.id, {"cpu": 1_250_000_000}) for job in jobs]

    def close(self):
        type(self).closed += 1


def fake_class(name, **attributes):
    return type("Fake", (Fake,), {"name": name, "closed": 0, **attributes})


def report(fake, *classes, arguments=()):
    options = build_parser([]).parse_args(["--once", *arguments])
    source = JobSource(fake.host, ["/oar", "/none"], compile_patterns([DEFAULT_PATTERN]))
    try:
        return once.report(options, classes, fake.host, "dahu-3", source)
    finally:
        source.close()


def job(fake, name, pids="", tids=""):
    fake.write(f"/oar/{name}/cgroup.procs", pids)
    fake.write(f"/oar/{name}/tasks", tids)


def test_it_says_what_it_finds_and_shows_one_sample(fake):
    job(fake, "bob_42", "10\n", "10\n11\n12\n")
    job(fake, "eve_7")
    text, status = report(fake, fake_class("one"))
    assert status == 0
    assert text.startswith("colmet-node ") and " on dahu-3, Linux " in text
    assert re.search(r" +/oar +found, 2 jobs\n", text) and re.search(r" +/none +not here\n", text)
    assert re.search(r" 42 +bob +1 +3 +/oar/bob_42\n", text) and re.search(r" 7 +eve +0 +0 +/oar/eve_7\n", text)
    assert re.search(r"^  one +on$", text, re.M)
    assert re.search(r"^fake_default\n +job 7 +job 42\n  cpu +1\.25 s +1\.25 s\n  mem +- +-\n", text, re.M)
    assert re.search(r"^agent_default\n +agent +one\n", text, re.M) and "exit_records" not in text


def test_it_says_which_controllers_hold_the_jobs_and_how_oar_counts_their_memory(fake):
    """What the kernel has is not the question: memory is mounted here, too."""
    names = ("cpuset", "cpu", "cpuacct", "memory", "pids")
    fake.write("/proc/self/mounts", "".join(f"{name} /cgroup/{name} cgroup rw,{name} 0 0\n" for name in names))
    for name in names:
        fake.mkdir(f"/cgroup/{name}")
    for name in names[:3]:
        fake.write(f"/cgroup/{name}/oar/bob_42/cgroup.procs", "")
        fake.write(f"/cgroup/{name}/oar/bob_42/tasks", "")
    options = build_parser([]).parse_args(["--once"])

    def printed():
        source = JobSource(fake.host, (), ())
        try:
            text, _ = once.report(options, [fake_class("one")], fake.host, "dahu-3", source)
        finally:
            source.close()
        assert max(map(len, text.splitlines())) <= 100
        return " ".join(text.split())

    text = printed()
    assert "jobs such as /cgroup/cpuset/oar/bob_42: cpu, cpuacct; not memory, blkio, pids. For memory set" in text
    assert '`my $Enable_mem_cg = "YES";` in job_resource_manager_cgroups.pl' in text
    fake.write("/cgroup/memory/oar/bob_42/tasks", "")
    text = printed()
    assert "/oar/bob_42: cpu, cpuacct, memory; not blkio, pids " in text and "Enable_mem_cg" not in text


def test_a_backend_that_is_off_says_why_and_what_to_do(fake):
    classes = [
        fake_class("able"),
        fake_class("absent", why_not="no such device; modprobe it " + "and so on " * 12),
        fake_class("unasked", wanted=False),
    ]
    text, status = report(fake, *classes)
    assert status == 0
    assert re.search(r"^  able +on\n  absent +off: no such device; modprobe it and so on", text, re.M)
    assert re.search(r"^  unasked +off: not requested; --enable-fake turns it on$", text, re.M)
    assert max(map(len, text.splitlines())) <= 100
    assert [cls.closed for cls in classes] == [1, 2, 0]


def test_the_status_is_1_where_nothing_can_be_measured(fake):
    text, status = report(fake, fake_class("absent", why_not="no"), fake_class("unasked", wanted=False))
    assert status == 1 and "fake_default" not in text
    assert report(fake)[1] == 1


def test_a_backend_that_fails_is_said_to(fake, caplog):
    def sample(self, jobs):
        raise OSError(5, "I/O error")

    text, status = report(fake, fake_class("broken", sample=sample), fake_class("one"))
    assert re.search(r"^  broken +on, but this sample failed: see the log$", text, re.M) and status == 0
    assert "I/O error" in caplog.text


def test_a_backend_that_meets_another_form_when_it_opens_leaves_the_others(fake):
    def open_(self):
        raise ParseError("ibstat", "hello")

    broken = fake_class("broken", open=open_)
    text, status = report(fake, broken, fake_class("one"))
    assert re.search(r"^  broken +off: ibstat: cannot parse 'hello'$", text, re.M) and status == 0
    assert re.search(r"^  one +on$", text, re.M) and broken.closed > 0


def test_what_measures_an_interval_is_given_one(fake, monkeypatch):
    slept, asked = [], []
    monkeypatch.setattr(once.time, "sleep", slept.append)

    def sample(self, jobs):
        asked.append((self.name, len(slept)))
        return [Sample(job.id, {"cpu": 10**9 * len(asked)}) for job in jobs]

    job(fake, "bob_42")
    rate = fake_class("rate", sample=sample, of_interval=True)
    text, _ = report(fake, fake_class("total", sample=sample), rate)
    assert asked == [("rate", 0), ("total", 1), ("rate", 1)] and slept == [once.INTERVAL_S]
    shown = [line for line in text.splitlines() if line.split()[:1] == ["cpu"]]
    assert "3 s" in str(shown) and "1 s" not in str(shown), "the first of its samples is not shown"
    slept.clear()
    report(fake, fake_class("total", sample=sample))
    assert slept == []


def test_backends_before_one_that_refuses_the_options_are_closed(fake):
    def refuse(cls, options, host):
        raise ConfigError("no")

    one = fake_class("one")
    with pytest.raises(ConfigError):
        report(fake, one, fake_class("two", from_options=classmethod(refuse)))
    assert one.closed == 1


def test_names_that_could_steer_a_terminal_are_shown_harmless(fake):
    job(fake, "b\x1b[31m\né_42")
    text, _ = report(fake, fake_class("one"))
    assert "\x1b" not in text and text.isascii() and "b\\x1b[31m\\n\\xe9" in text


def test_many_jobs_stand_in_blocks_that_fit_a_terminal():
    schema = Fake.schema
    samples = [Sample(1_000_000 + n, {"cpu": 10**9 * n}) for n in range(40)]
    lines = list(once.format_table(Table.from_samples(schema, 1, samples)))
    assert max(map(len, lines)) <= 100 and lines.count("") >= 4
    headings = [word for line in lines if "job 1" in line for word in re.findall(r"job (\d+)", line)]
    assert headings == [str(1_000_000 + n) for n in range(40)]
    assert len([line for line in lines if line.startswith("  cpu ")]) == lines.count("")


def test_rows_of_the_node_are_distinguished_by_their_label():
    schema = Schema("card_default", "node", [Field("card", "none", "label", dtype="S40"), Field("n", "count", "gauge")])
    samples = [Sample(0, {"card": b"a\x1b", "n": 1}), Sample(0, {"n": 2}), Sample(0, {"card": b"x" * 40, "n": 3})]
    lines = list(once.format_table(Table.from_samples(schema, 1, samples)))
    assert lines[1].split() == ["a\\x1b", "node", "x" * 24] and lines[2].split() == ["n", "1", "2", "3"]


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("count", 1234567, "1,234,567"),
        ("count", None, "-"),
        ("none", 0.44, "0.44"),
        ("bytes", 0, "0 B"),
        ("bytes", 36175872, "34.5 MiB"),
        ("bytes", 2**63 - 1, "8.0 EiB"),
        ("mbytes", 143771, "140.4 GiB"),
        ("nsec", 12, "12 ns"),
        ("nsec", 1_250_000_000, "1.25 s"),
        ("nsec", 999_900_000, "1,000 ms"),
        ("sec", 90, "90 s"),
        ("sec", 750, "12.5 min"),
        ("sec", 864000, "10.0 d"),
        ("jiffies", 125, "1.25 s"),
        ("mbytes-usec", 90_400_000, "90.4 MiB s"),
        ("ujoules", 1_500_000, "1.5 J"),
        ("celsius", 45, "45 C"),
        ("watts", 212.5, "212 W"),
        ("percent", 12.25, "12.2 %"),
        ("ts_date", 2**62, "4,611,686,018,427,387,904"),
    ],
)
def test_values_are_for_people(unit, value, text):
    if unit == "jiffies" and os.sysconf("SC_CLK_TCK") != 100:
        value = value * os.sysconf("SC_CLK_TCK") // 100
    dtype = "f8" if isinstance(value, float) else "i8"
    assert once.humanise(Field("x", unit, "gauge", dtype=dtype), value) == text


def test_a_date_is_one():
    assert re.fullmatch(
        r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", once.humanise(Field("x", "ts_date", "gauge"), 1_700_000_000)
    )


def test_every_backend_that_can_be_left_out_names_the_option_that_turns_it_on():
    for cls in load(NAMES):
        options = build_parser(load(NAMES)).parse_args(["--disable-procstats"])
        if cls.from_options(options, Host()) is None:
            assert re.search(r"(turned off by|;) --(en|dis)able-", once.switch_of(cls)), cls.name


@pytest.mark.live
def test_the_command_measures_a_real_job(cgroups):
    work = cgroups.job("bob_42")
    work.start("sleep", "60")
    done = run("--cpuset_rootpath", str(cgroups.path), "--enable-jobproc")
    assert done.returncode == 0, done.stderr
    assert re.search(rf" 42 +bob +1 +1 +{cgroups.path}/bob_42\n", done.stdout)
    for name in ("taskstats", "procstats", "jobproc"):
        assert re.search(rf"^  {name} +on$", done.stdout, re.M)
    for table in ("taskstats_default\n +job 42\n", "procstats_default\n +node\n", "jobprocstats_default\n +job 42\n"):
        assert re.search(f"^{table}", done.stdout, re.M)
    assert "ERROR" not in done.stderr and "Traceback" not in done.stderr and "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if str(cgroups.path) not in line) <= 100


@pytest.mark.live
def test_it_opens_no_socket_but_the_kernels_and_leaves_its_priority_as_it_is():
    code = (
        "import os, socket, sys, zmq\nimport colmet.node.main as main\n"
        "def refuse(*args, **kwargs):\n    raise AssertionError('a ZeroMQ socket')\n"
        "zmq.Context.socket = refuse\nos.setpriority = os.sched_setaffinity = refuse\n"
        "sys.exit(main.main(['--once', '--cpuset_rootpath', '/none']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.live
def test_without_root_it_says_what_is_missing(root):
    code = (
        "import locale, os, sys, colmet.node.jobs.watches\nimport colmet.node.main as main\n"
        "from colmet.common.daemon import startup\n"
        "from colmet.node.backends import NAMES\nstartup.load(NAMES)\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "sys.exit(main.main(['--once', '--cpuset_rootpath', '/none']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "without CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE: start colmet-node as root, or give it CAP_DAC_READ" in said
    assert "reading taskstats needs CAP_NET_ADMIN; start colmet-node as root, or give it CAP_NET_ADMIN" in said
    assert "Traceback" not in done.stderr
    assert "procstats_default" in done.stdout


@pytest.mark.live
def test_a_reader_that_stops_reading_is_no_error():
    line = f"{shlex.join(COMMAND)} --cpuset_rootpath /none | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("colmet-node ")
    assert "Traceback" not in done.stderr and "Broken" not in done.stderr


@pytest.mark.live
@pytest.mark.parametrize("redirect", [">/dev/full", ">&-"])
def test_an_output_that_accepts_nothing_is_one_line_and_status_1(redirect):
    line = f"{shlex.join(COMMAND)} --cpuset_rootpath /none {redirect}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "cannot write to standard output" in done.stderr
    assert "Traceback" not in done.stderr


def has_ended(pid):
    """Whether a process has ended, be it that nobody has asked for its exit status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


# Starting a program returns long after it runs, as it does where the parent of the two has to wait for a CPU.
SLOW_START = """
import subprocess, sys, time
import colmet.node.main as main
start = subprocess.Popen._execute_child
def start_slowly(*arguments):
    start(*arguments)
    time.sleep(0.3)
subprocess.Popen._execute_child = start_slowly
sys.exit(main.main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", [COMMAND, [sys.executable, "-c", SLOW_START, "--once"]], ids=["runs", "starts"])
def test_a_signal_ends_it_and_the_program_that_it_waits_for(tmp_path, number, command):
    program, pids = tmp_path / "power", tmp_path / "pids"
    program.write_text(f"#!/bin/sh\ntrap '' TERM INT\necho $$ >> {pids}\nexec sleep 600\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [*command, "--enable-ipmipower", "--ipmipower-cmd", "power"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        while not (pids.exists() and pids.read_text().endswith("\n")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "Traceback" not in said
    (pid,) = pids.read_text().split()
    until = time.monotonic() + 30
    while not has_ended(pid):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_bad_options_are_refused_as_ever():
    done = run("--regex_job_id", "nogroup")
    assert done.returncode == 2 and not done.stdout
