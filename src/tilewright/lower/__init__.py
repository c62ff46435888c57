"""Floor 7: joins graphs to kernels: fused functions become loop programs, loop programs become one deployable model."""
