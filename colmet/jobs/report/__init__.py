"""The report of a job: its content, its advice, and how it is made from stored rows."""
