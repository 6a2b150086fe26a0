"""lightning-hangcheck: which rank hangs, at which line, why, and what now."""
