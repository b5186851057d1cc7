"""The job archive: one summary for each job and host, and one for the whole job."""
