"""The jobs of a node: where resource managers put them, how they are found and whose they are."""
