"""Clients of the batch systems' queues, jobs and hosts: one module for each batch system."""
