"""Texts and their forms: moments, ranges of ranks, commands, what is shown and what is hidden.

The lowest floor: nothing here knows of ranks, files or processes. What leaves a process goes
through `redaction`; what a terminal shows goes through `plain_text`.
"""

__all__ = ["amounts", "moments", "plain_text", "rank_ranges", "redaction", "shown_command"]
