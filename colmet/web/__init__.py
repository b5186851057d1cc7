"""The collector's JSON interface and page: a process of its own, which the collector starts and feeds."""
