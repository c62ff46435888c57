"""Back ends, a folder each: the kind of target, its code generator and compiler, its driver."""
