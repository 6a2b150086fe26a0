"""TODO."""

__all__ = ["beat_writer", "reader", "writer"]
