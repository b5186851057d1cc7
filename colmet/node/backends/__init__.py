"""Input backends: one file and one line each."""

NAMES = {
    "taskstats": "colmet.node.backends.taskstats:TaskstatsBackend",
    "cgroup": "colmet.node.backends.cgroup:CgroupBackend",  # after taskstats: it uses what that has just measured
    "procstats": "colmet.node.backends.procstats:ProcstatsBackend",
    "jobproc": "colmet.node.backends.jobproc:JobprocBackend",
    "rapl": "colmet.node.backends.rapl:RaplBackend",
    "infiniband": "colmet.node.backends.infiniband:InfinibandBackend",
    "lustre": "colmet.node.backends.lustre:LustreBackend",
    "temperature": "colmet.node.backends.temperature:TemperatureBackend",
    "nvidia": "colmet.node.backends.nvidia:NvidiaBackend",
    "perfhw": "colmet.node.backends.perfhw:PerfhwBackend",
    "ipmipower": "colmet.node.backends.ipmipower:IpmipowerBackend",
}
