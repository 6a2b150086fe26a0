"""Where the ranks' ways part: in which collective each is pending, since when, and who diverged.

`find_divergence` is asked once a case. Its answer goes to the graph, the rules and the tables.
"""

__all__ = ["attribution", "awaited_ranks", "divergence", "pending_collectives"]
