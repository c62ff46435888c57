"""Benchmarks: the ten models, the commands that measure them, and the demonstration behind `make demo`."""
