"""TODO."""

__all__ = ["run"]
