"""Interfaces of the kernel: netlink, taskstats, fork events, perf events, forms of files."""
