"""Loops of the program's own: named steps, tracked iterables, their times and their bar."""
