"""TODO."""

__all__ = ["discovery", "limits", "looking", "pages", "process_tree", "run_record", "watch_notes"]
