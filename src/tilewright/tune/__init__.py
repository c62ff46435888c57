"""Floor 8: the learned tuner. Spaces of schedules, features, cost models, search, measurement, the database."""
