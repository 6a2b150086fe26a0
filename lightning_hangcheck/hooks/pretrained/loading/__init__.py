"""TODO."""

__all__ = ["loading", "loading_seams", "shard_progress", "source", "watched_load"]
