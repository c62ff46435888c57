"""Floor 1: what every other package stands on (errors, spans, settings, tracing, text helpers)."""
