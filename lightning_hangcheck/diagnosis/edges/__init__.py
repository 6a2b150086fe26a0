"""Edges of the wait-for graph: one file for each kind of fact that shows who waits for whom."""
