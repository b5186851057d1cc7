"""What batch systems say of their queues, jobs and hosts: one module for each of them."""
