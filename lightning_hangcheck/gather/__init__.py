"""Node evidence becomes one `Case`: who is there, who should be, and whose stacks are equal."""

__all__ = ["case_building", "node_merge", "node_view", "rank_set", "stack_groups"]
