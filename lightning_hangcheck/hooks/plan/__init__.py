"""TODO."""

__all__ = ["memory_plan"]
