"""TODO."""

__all__ = ["memory", "use"]
