"""Guards that a user puts around what one rank does and others wait for, one file each.

Each has a time limit, and names who is missing or who holds what. They may raise and wait, which
nothing else of this package may.
"""
