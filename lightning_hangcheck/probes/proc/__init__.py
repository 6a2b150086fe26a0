"""TODO."""

__all__ = ["exits", "files", "kernel", "last_run", "permission", "process_tree", "vitals"]
