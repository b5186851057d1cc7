"""Reports on stored jobs: figures, energy, completeness, advice."""
