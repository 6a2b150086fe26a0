"""What can be checked before a run, each check with its remedy and a time limit.

A check answers `check.Check` and never raises: a machine on which something cannot be checked is a
machine on which the run may still be fine. The checks stand in rooms by what they are about, and in
each room a table (`questions`) says what is looked at and why it matters. `examination` asks them.
"""
