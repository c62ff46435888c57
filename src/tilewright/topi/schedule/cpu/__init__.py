"""Default CPU schedules, derived from the target's numbers (vector width, registers, cores)."""
