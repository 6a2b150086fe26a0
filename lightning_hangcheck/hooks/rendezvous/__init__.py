"""TODO."""

__all__ = ["missing_ranks", "peer_group", "point", "rendezvous"]
