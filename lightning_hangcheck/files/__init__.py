"""TODO."""

__all__ = ["apart", "atomic", "decoding", "owned_file"]
