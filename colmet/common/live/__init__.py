"""The latest rows of each job and node, for colmet top, the page and the metrics page."""
