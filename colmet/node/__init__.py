"""The daemon of the compute nodes: finds jobs, measures them, sends the samples."""
