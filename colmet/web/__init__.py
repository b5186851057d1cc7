"""The collector's JSON interface and page: a separate process, started and fed by the collector."""
