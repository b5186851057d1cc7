"""Text for people: numbers with units, times, layout."""
