"""TODO."""

__all__ = ["files", "start"]
