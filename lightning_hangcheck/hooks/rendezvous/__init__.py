"""Ranks meet by name, before or beside any process group, with a time limit.

A guard asks `peer_group` whom it meets, and `rendezvous` waits for them through `places`: a folder
in shared memory, or a store that torch serves. `point` is one such rendezvous and what is left
there; `missing_ranks` says who did not come, and where they are stuck.
"""
