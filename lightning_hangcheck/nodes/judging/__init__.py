"""Who judges for all nodes, whose words it takes, and when they meet elsewhere as well. Pure.

`tree` says who takes whose words, `succession` who judges once the first node is silent, `moving`
when a folder is used beside a store, `same_number` whether two nodes have one number.
"""

__all__ = ["moving", "same_number", "succession", "tree"]
