"""Who waits for whom: each kind of fact draws its edges, and where these end stand the culprits."""

__all__ = ["process_edges", "wait_graph"]
