"""How processes become ranks, which groups they make, and what they call there."""

__all__ = ["call_notes", "group_notes", "process_groups", "spawned"]
