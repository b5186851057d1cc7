"""Totals of jobs from the values of tasks: the job of each task, and the resources used by its tasks."""
