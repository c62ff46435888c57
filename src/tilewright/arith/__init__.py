"""Floor 3: reasoning about integer expressions: bounds, residues, simplification, iterator maps, regions, proofs."""
