"""Starts our own Python processes in a clean environment: no foreign code, no secrets.

`command` builds the command and its environment; `entry` is the file that the process runs first.
"""
