"""TODO."""

__all__ = ["frames", "loading"]
