"""Artifacts and exported libraries, arrays, modules and executors: all that runs a model on a CPU."""
