"""What has been stored of jobs and nodes, read from where it is: HDF5 files or a database."""
