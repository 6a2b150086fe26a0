"""TODO."""

__all__ = ["steps", "tracking"]
