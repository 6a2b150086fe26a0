"""A verdict as plain text.

`terminal` writes all of it, `headline` what a tired person reads first, `rank_rows` one row for all
ranks in the same situation, `stacks_text` every stack as it was sampled.
"""
