"""In the training process: says what the rank does, where a sidecar reads it. Never in the way."""
