"""colmet mem: memory used, reserved and available, by host and job."""
