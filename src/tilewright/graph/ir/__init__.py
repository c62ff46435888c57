"""The graph IR itself: nodes, types and their inference, traversal, rewriting, contracts of stages."""
