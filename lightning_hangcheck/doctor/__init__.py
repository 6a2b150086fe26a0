"""What can be checked before a run, one file a check, each with its remedy and a time limit.

A check answers `check.Check` and never raises: a machine on which something cannot be checked is a
machine on which the run may still be fine.
"""

__all__ = ["before_run", "machine"]
