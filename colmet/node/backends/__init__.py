"""Input backends: one file and one line each."""

NAMES = {
    "taskstats": "colmet.node.backends.taskstats:TaskstatsBackend",
    "cgroup": "colmet.node.backends.cgroup:CgroupBackend",
    "procstats": "colmet.node.backends.procstats:ProcstatsBackend",
    "jobproc": "colmet.node.backends.jobproc:JobprocBackend",
    "perfhw": "colmet.node.backends.perfhw:PerfhwBackend",
    "rapl": "colmet.node.backends.rapl:RaplBackend",
    "temperature": "colmet.node.backends.temperature:TemperatureBackend",
    "ipmipower": "colmet.node.backends.ipmipower:IpmipowerBackend",
    "infiniband": "colmet.node.backends.infiniband:InfinibandBackend",
    "lustre": "colmet.node.backends.lustre:LustreBackend",
    "nvidia": "colmet.node.backends.nvidia:NvidiaBackend",
}
