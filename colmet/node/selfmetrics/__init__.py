"""What the agent measures of itself: its cost, what it drops, completeness, health."""
