"""Floor 5: code generators, from loop-level IR to artifacts."""
