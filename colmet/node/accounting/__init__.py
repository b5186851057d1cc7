"""Totals of jobs from the values of tasks: the job of each task, and what its tasks used."""
