"""What training goes on from: which checkpoint is loaded, and what checkpoints hold.

The door offers what says a resumption (`resuming`).
"""

__all__ = ["resuming"]
