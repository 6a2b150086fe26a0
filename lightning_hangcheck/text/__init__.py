"""Texts and their forms: nothing here knows of ranks, files or processes.

What leaves a process goes through `redaction`. `shown` writes moments, rank ranges and commands,
and makes foreign text harmless on a terminal. `status_region` keeps lines at the bottom of one.
"""
