"""Tables of colmet-facility: logins, notebooks, users, machines, disks, queues, jobs. Rows are of job 0."""

from __future__ import annotations

from colmet.common.schema import Field, Schema, gauge, label


def _label(name: str, size: int, text: str, source: str = "the document") -> Field:
    return label(name, size, text, source)


_CLUSTER = _label("cluster", 64, "Name of the facility.", "--cluster")
_LOGIN_NODE = _label("login_node", 128, "Machine of the row.", "the document's login_node")

LOGINS = Schema(
    "facility_logins_default",
    "node",
    [_CLUSTER, _LOGIN_NODE, gauge("users", "count", "Logged-in users.", "who and last, kind ssh, ssh_user_count")],
)
JUPYTER = Schema(
    "facility_jupyter_default",
    "node",
    [
        _label("kind", 32, "jupyter-ml or jupyter-coffea."),
        _CLUSTER,
        gauge("users", "count", "Users with a notebook.", "the Kubernetes API, jupyter_user_count"),
    ],
)
USERS = Schema(
    "facility_users_default",
    "node",
    [
        _label("kind", 32, "Kind of login: ssh, jupyter-ml or jupyter-coffea."),
        _CLUSTER,
        _label("login_node", 128, "Machine of the login; missing for Jupyter.", "kind ssh, login_node"),
        _label("user", 128, "Name of the user, obfuscated on request.", "the document's users"),
        gauge("times", "count", "How often the document names the user.", "the document's users"),
    ],
)
HOSTS = Schema(
    "facility_hosts_default",
    "node",
    [
        _CLUSTER,
        _LOGIN_NODE,
        gauge("load", "none", "Load average of the last minute.", "getloadavg, kind CPU", "f8"),
        gauge("memory_total", "bytes", "Memory of the machine.", "psutil.virtual_memory, kind MEM, total"),
        gauge("memory_available", "bytes", "Available memory.", "the same, available"),
        gauge("network_sent", "bytes", "Sent within network_interval.", "psutil.net_io_counters, kind NETWORK"),
        gauge("network_received", "bytes", "Received within network_interval.", "the same"),
        gauge("network_interval", "sec", "Interval of the two columns before.", "the state file", "f8"),
    ],
)
DISKS = Schema(
    "facility_disks_default",
    "node",
    [
        _CLUSTER,
        _LOGIN_NODE,
        _label("device", 128, "Device of the file system, without /dev/; missing for a path that is no mount."),
        _label("mount", 255, "Mount point of the file system.", "--disk"),
        gauge("total", "bytes", "Size of the file system.", "statvfs, kind DISK"),
        gauge("used", "bytes", "Used of it.", "the same"),
        gauge("free", "bytes", "Free for users.", "the same"),
        gauge("utilization", "none", "used / total, from 0 to 1.", "the same", "f8"),
    ],
)
QUEUES = Schema(
    "facility_queues_default",
    "node",
    [
        _CLUSTER,
        _label("queue", 128, "Name of the queue, or the one given to a constraint."),
        gauge("idle", "count", "Waiting jobs.", "the batch system, kind condorqueue"),
        gauge("running", "count", "Running jobs.", "the same"),
        gauge("held", "count", "Jobs on hold.", "the same"),
        gauge("allocated_cores", "count", "Cores of running jobs.", "the same"),
        gauge("allocated_mem", "mbytes", "Memory of running jobs.", "the same"),
    ],
)
JOBS = Schema(
    "facility_jobs_default",
    "node",
    [
        _CLUSTER,
        _label("id", 64, "As the batch system's own commands print it.", "kind condorjob, Id"),
        _label("user", 128, "Its owner, obfuscated on request.", "kind condorjob, users"),
        _label("state", 16, "idle, running, held, finished, ...", "kind condorjob, state"),
        gauge("runtime", "sec", "Time since its start.", "kind condorjob, Runtime"),
    ],
)
SCHEMAS = (LOGINS, JUPYTER, USERS, HOSTS, DISKS, QUEUES, JOBS)
