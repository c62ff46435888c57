"""What the C-like back ends share: expressions, statements and kernels as C text, for a dialect."""
