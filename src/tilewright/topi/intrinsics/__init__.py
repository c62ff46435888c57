"""Tensor intrinsics of processors: what their dot-product and matrix instructions compute, and how they are called."""
