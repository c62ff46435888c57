"""C source for CPUs."""
