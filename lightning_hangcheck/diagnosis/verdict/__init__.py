"""TODO."""

__all__ = ["facts", "remedies", "summary", "tables"]
