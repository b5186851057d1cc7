"""Input backends: one file and one line each."""

NAMES = {
    "taskstats": "colmet.node.backends.taskstats:TaskstatsBackend",
    "procstats": "colmet.node.backends.procstats:ProcstatsBackend",
    "jobproc": "colmet.node.backends.jobproc:JobprocBackend",
}
