"""What the ranks of a job on one node share in memory while it runs.

A rank joins through `session`, which also defines the session's files and frees what dead jobs
left, and tells jobs, rounds and nodes apart. `run_folders` chooses the run folder, and
`journal_carrier` moves journals there. `collective_notes` holds a rank's notes of its process
groups and calls.
"""
