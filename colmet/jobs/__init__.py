"""What is known of a job, computed once: the fold of rows, figures, archive and report."""
