"""What jobs and nodes use now, live in the terminal: `colmet top`."""
