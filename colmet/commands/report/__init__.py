"""What a job did, from what has been stored of it: figures, energy, completeness, advice."""
