"""TODO."""

__all__ = ["barrier", "limits", "locked", "make_directory", "rank_zero_first"]
