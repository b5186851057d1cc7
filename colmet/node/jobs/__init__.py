"""The jobs of a node: their places, the search for them, and their users."""
