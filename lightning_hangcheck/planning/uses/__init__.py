"""What a model is used for: usual prompts, what stands beside it, and phases of different use."""
