"""What the ranks of a job on one node share while it runs, in memory.

`session` is the way in for a rank and what is found there; it frees what dead jobs left. `whose`
tells jobs, their rounds and their nodes apart. `run_folders` settles where the run is kept, and how
journals come there. `collective_notes` holds what a rank notes of its process groups and calls.
"""
