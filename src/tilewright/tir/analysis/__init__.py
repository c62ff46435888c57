"""Questions about loop-level programs that schedules and passes ask: structure, regions, dependences."""
