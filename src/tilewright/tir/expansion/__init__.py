"""Mathematical functions written out as arithmetic on whole vectors: what `lower_intrinsics` puts in place of calls."""
