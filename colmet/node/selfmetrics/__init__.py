"""Self-metrics of the agent: its cost, dropped data, completeness, health."""
