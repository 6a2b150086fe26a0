"""A conclusion in words: the summary, the facts that it rests on, what to do, and the tables."""

__all__ = ["bounds", "facts", "lost_progress", "remedies", "save_advice", "summary", "tables"]
