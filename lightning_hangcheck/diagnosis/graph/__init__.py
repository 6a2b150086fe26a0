"""TODO."""

__all__ = ["process_edges", "wait_graph"]
