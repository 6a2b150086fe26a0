"""Does it get on? What processes and ranks do, by samples compared, and at which pace."""

__all__ = ["livelock", "paced_place", "process_activity", "rank_activity"]
