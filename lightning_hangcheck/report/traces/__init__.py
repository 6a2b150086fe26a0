"""A run as a trace for Perfetto: `trace_events` declares the format and `perfetto` fills it."""
