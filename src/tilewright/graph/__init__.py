"""Floor 4: the high-level, typed, functional IR of models: operators, inference, interpreter, graph passes."""
