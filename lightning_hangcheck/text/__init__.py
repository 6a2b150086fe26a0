"""Texts and their forms, without knowledge of ranks, files or processes.

What leaves a process goes through `redaction`. `shown` writes moments, rank ranges and commands,
and makes foreign text harmless on a terminal.
"""
