"""CUDA C: the dialect, and functions to programs."""
