"""TODO."""

__all__ = ["file_locks", "holders", "polled_locks", "system_calls"]
