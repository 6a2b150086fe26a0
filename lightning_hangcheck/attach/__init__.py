"""TODO."""

__all__ = ["job_grouping", "job_search", "merge", "offer", "visit", "watched_history"]
