"""Will a model fit, how fast will it be, do batches add up? Arithmetic; no torch, no clock."""
