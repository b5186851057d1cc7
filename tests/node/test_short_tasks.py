"""Real jobs under the real daemons: nothing that a job used is left out, however short its tasks lived."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from colmet.common.schema import Schema
from colmet.node.backends.taskstats import SCHEMA
from dev.live import Daemons, Failed
from dev.workloads import measure, table
from tests.support.place import skip_refused

pytestmark = [pytest.mark.live, pytest.mark.slow]


def assert_never_down(rows, schema: Schema):
    """The counters of a table's rows never go down."""
    for field in schema.fields:
        values = [row[field.name] for row in rows if field.name in row]
        if field.kind == "counter" and field.fold != "min":
            assert values == sorted(values), field.name


def rows_of(rows, table, job_id):
    return [row for row in rows if row["metric_backend"] == table and row["job_id"] == job_id]


@pytest.fixture
def start_daemons(tmp_path, root_directory):
    started = []

    def start(*node_options):
        started.append(Daemons(tmp_path, ["--cpuset_rootpath", str(root_directory.path), *node_options]))
        return started[-1]

    yield start
    for daemons in started:
        daemons.stop()


def test_what_short_tasks_use_is_attributed_and_the_rest_is_reported(root, tmp_path):
    """Five jobs that looking now and then does not see; the independent source is the cgroup's own total."""
    try:
        outcomes = measure(tmp_path)
    except Failed as err:
        if "not installed" in str(err) or "mount" in str(err):
            skip_refused(str(err))
        raise
    print(table(outcomes))
    is_in_kernel = "jobs are accounted in the kernel" in (tmp_path / "daemons.log").read_text()
    assert sum(one.sampled_ns for one in outcomes) < 0.9 * sum(one.kernel_ns for one in outcomes), "looking would do"
    for one in outcomes:
        name, total = one.workload.name, one.kernel_ns
        assert total > 1e9, f"{name}: too small to tell"
        if is_in_kernel:
            assert one.attributed_ns >= one.workload.at_least * total, name
        assert one.attributed_ns + one.unattributed_ns == pytest.approx(total, rel=0.005), name
        tasks = [row for row in one.rows if row["metric_backend"] == "taskstats_default"]
        assert len(tasks) >= 2, "a tick, and the end"
        assert_never_down(tasks, SCHEMA)


# It waits until it has been looked at: what a task has used when it is first seen may have been used elsewhere.
BURN = (
    "import sys,time\ntime.sleep(0.7)\nwhile time.process_time() < {}: pass\n"
    "print('done', flush=True)\nsys.stdin.readline()\n"
)


def test_totals_go_on_over_kill_9_and_what_ended_meanwhile_is_reported_as_unattributed(
    start_daemons, root_directory, tmp_path
):
    daemons = start_daemons("-s", "1", "--state-dir", str(tmp_path / "state"), "--task-accounting", "netlink")
    daemons.wait_for_log("backend on backend=taskstats")
    job = root_directory.job("bob_7")
    daemons.wait_for_log("job started job=7 ")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}

    def burn(cpu_s, more=""):
        process = job.start([sys.executable, "-S", "-c", BURN.format(cpu_s) + more], **pipes)
        assert process.stdout.readline() == "done\n"
        return process

    live = burn(0.5, "while time.process_time() < 1: pass\nprint('done', flush=True)\nsys.stdin.read()")
    burn(0.4).communicate()
    job.start(["/bin/sh", "-c", "for i in $(seq 100); do /bin/true; done"]).wait()
    wanted = lambda row: row.get("job_id") == 7 and row["metric_backend"] == "cgroup_default"  # noqa: E731
    rows = daemons.take_rows()
    for _ in range(2):
        daemons.wait_for_row(lambda row: rows.append(row) or wanted(row))
    daemons.node.send_signal(signal.SIGKILL)
    daemons.node.wait()
    time.sleep(0.5)
    rows += daemons.take_rows()
    before = [row for row in rows if wanted(row)][-1]
    away = job.cpu_ns()
    burn(1.5).communicate()  # nobody saw it
    away = job.cpu_ns() - away
    daemons.start_node()
    daemons.wait_for_log("totals go on from before the agent's restart job=7 ")
    back = daemons.wait_for_row(lambda row: rows.append(row) or wanted(row))
    live.stdin.write("\n")
    live.stdin.flush()
    assert live.stdout.readline() == "done\n"
    burn(0.3).communicate()
    live.communicate()
    time.sleep(0.5)
    total = job.cpu_ns()
    job.close()
    daemons.wait_for_log("job ended job=7")
    time.sleep(0.5)
    rows += daemons.take_rows()
    tasks, groups = rows_of(rows, "taskstats_default", 7), rows_of(rows, "cgroup_default", 7)

    assert away > 1.4e9, "what it used before it was moved into the job is not the job's"
    assert back["cpu_unattributed"] - before["cpu_unattributed"] == pytest.approx(away, rel=0.2)
    assert_never_down(tasks, SCHEMA)
    assert tasks[-1]["cpu_total"] + groups[-1]["cpu_unattributed"] == pytest.approx(total, rel=0.005)
    assert tasks[-1]["cpu_total"] == pytest.approx(total - away, rel=0.1)


def test_a_damaged_state_is_put_aside_with_a_warning_and_the_agent_measures(start_daemons, root_directory, tmp_path):
    daemons = start_daemons("-s", "0.3", "--state-dir", str(tmp_path / "state"), "--task-accounting", "netlink")
    job = root_directory.job("bob_7")
    job.start(["sleep", "60"])
    wanted = lambda row: row.get("job_id") == 7 and row["metric_backend"] == "taskstats_default"  # noqa: E731
    daemons.wait_for_row(wanted)
    daemons.node.send_signal(signal.SIGKILL)
    daemons.node.wait()
    daemons.take_rows()
    state = tmp_path / "state/taskstats.state"
    damaged = state.read_bytes()[:-9]
    state.write_bytes(damaged)
    daemons.start_node()
    daemons.wait_for_row(wanted)
    assert daemons.log.read_text().count("state is damaged") == 1
    assert (tmp_path / "state/taskstats.state.damaged").read_bytes() == damaged


def test_every_ended_task_is_counted(start_daemons, root_directory):
    """A thousand processes that end at once, and the one that started them."""
    daemons = start_daemons("-s", "1")
    daemons.wait_for_row(lambda row: row.get("backend") == "taskstats")
    job = root_directory.job("bob_8")
    script = "import os\nfor _ in range(1000):\n    pid = os.fork()\n    pid or os._exit(0)\n    os.waitpid(pid, 0)\n"
    assert job.start([sys.executable, "-S", "-c", script]).wait(timeout=60) == 0
    job.close()
    row = daemons.wait_for_row(lambda row: row["job_id"] == 8 and row.get("tasks_ended", 0) > 1000)
    assert row["tasks_ended"] == 1001
    daemons.check()
