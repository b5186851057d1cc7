"""Developer programs: demo, live workloads, pictures, manual pages, dashboards, docs/metrics.md. Not installed."""
