"""What can be checked before a run: each check a function with its reason, by subject in one file.

A check never raises: a machine on which something cannot be checked may be fine for the run.
"""
