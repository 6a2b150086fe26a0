"""Who judges for all nodes, whose words it takes, and when they meet elsewhere as well. Pure.

`tree` says who takes whose words, `succession` who judges once the first node is silent, `moving`
when a folder is used beside a store.
"""

__all__ = ["moving", "succession", "tree"]
