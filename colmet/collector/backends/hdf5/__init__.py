"""HDF5 files: the output, its file, and what repairs one after a crash."""
