"""TODO."""

__all__ = ["amounts", "moments", "plain_text", "rank_ranges", "redaction", "shown_command"]
