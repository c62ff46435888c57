"""Floor 6: the operator library: what each graph operator computes, and its default schedules per target family."""
