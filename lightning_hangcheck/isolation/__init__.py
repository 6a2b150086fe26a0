"""Starts our own Python processes in a clean environment: no foreign code, no secrets.

`command` builds the command and its environment; `entry` is the file with which our own Python
process begins.
"""
