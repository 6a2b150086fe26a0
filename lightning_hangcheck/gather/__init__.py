"""Node evidence becomes one `Case`: who is there, who should be, and whose stacks are equal."""

__all__ = [
    "alike_records",
    "case_building",
    "group_families",
    "node_clocks",
    "node_merge",
    "node_view",
    "rank_set",
    "stack_groups",
]
