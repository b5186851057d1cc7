"""HDF5 files: the output, its file, and its repair after a crash."""
