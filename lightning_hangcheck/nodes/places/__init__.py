"""Where nodes leave what they tell for each other.

`meeting_place` says what such a place can do and is one in a folder, `store_place` one in the store
of the job's launcher, `sealed_place` seals either among strangers.
"""

__all__ = ["meeting_place", "sealed_place", "store_place"]
