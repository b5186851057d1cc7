"""Live resource use of jobs and nodes in the terminal: `colmet top`."""
