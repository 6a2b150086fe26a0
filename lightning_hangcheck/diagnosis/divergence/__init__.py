"""TODO."""

__all__ = ["attribution", "divergence", "pending_collectives"]
