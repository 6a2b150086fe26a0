"""TODO."""

__all__ = ["messages", "starting"]
