"""Texts and their forms: moments, ranges of ranks, commands, what is shown and what is hidden.

The lowest floor: nothing here knows of ranks, files or processes. What leaves a process goes
through `redaction`, and which variables may is said in `published`; what a terminal shows goes
through `plain_text`.
"""
