"""From the values of tasks to the totals of jobs: whose a task was, what it used in all."""
