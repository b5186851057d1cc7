"""Where jobs are: the layouts of resource managers, found in the cgroup mounts."""
