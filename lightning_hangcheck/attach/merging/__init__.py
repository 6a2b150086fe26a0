"""`hangcheck merge`: what was written on several nodes, joined into one verdict.

`merge` reads, joins, judges and keeps; `folded_nodes` does so for large jobs without holding all
nodes at once, `merged_history` joins what their records say of clocks and rounds.
"""
