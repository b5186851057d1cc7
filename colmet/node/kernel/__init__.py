"""What the kernel says, and how it is asked: netlink, taskstats, fork events, forms of files."""
