"""What people run beside the daemons."""
