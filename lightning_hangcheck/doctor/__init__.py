"""Checks before a run, one function each, grouped by subject into files.

A check never raises: a machine where something cannot be checked may still be fine for the run.
"""
