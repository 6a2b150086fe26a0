"""TODO."""

__all__ = [
    "discovery",
    "looking",
    "pages",
    "patience",
    "process_tree",
    "run_record",
    "saving",
    "watch_notes",
]
