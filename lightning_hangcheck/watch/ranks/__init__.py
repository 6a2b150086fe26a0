"""TODO."""

__all__ = ["roster", "rounds", "run_recorder", "watched_rank"]
