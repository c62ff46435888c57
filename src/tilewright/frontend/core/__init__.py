"""What importers share: the builder of graphs, and computations that several frameworks name differently."""
