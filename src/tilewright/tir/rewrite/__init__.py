"""How statements are rewritten: the visitors that passes share, folding, and rewrites that passes are built from."""
