"""TODO."""

__all__ = ["messages", "publishing", "ranks", "starting"]
