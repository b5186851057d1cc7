"""What NVIDIA's driver tells of GPUs, and which of them a job holds."""
