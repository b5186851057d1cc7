"""What people run: one module or package for each command of colmet."""
