"""Floor 2: the shared core of every IR: data types, nodes, scalar expressions, types, functions, modules."""
