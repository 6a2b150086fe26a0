"""What a model is used for: usual prompts, what stands beside it, and phases of different use."""

__all__ = ["beside", "phases", "usual_use"]
