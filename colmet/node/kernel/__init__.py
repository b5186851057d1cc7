"""Interfaces of the kernel: taskstats and fork events over netlink, perf events, files of /proc and of cgroups."""
