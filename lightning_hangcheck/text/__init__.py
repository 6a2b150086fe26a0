"""TODO."""

__all__ = ["moments", "plain_text", "rank_ranges", "redaction", "shown_command"]
