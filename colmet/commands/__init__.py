"""Commands of colmet: one module or package for each."""
