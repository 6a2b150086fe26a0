"""TODO."""

__all__ = ["roster", "rounds", "watched_rank"]
