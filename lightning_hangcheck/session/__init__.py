"""What the ranks of a job on one node share while it runs, in memory.

`joining` is the way in for a rank, `session` what is found there. `journal_handover` and
`stack_offers` are how a rank hands lines and stacks to the sidecar, `collectives` what it notes
of its process groups and calls; `job_key` tells jobs and their
rounds apart; `run_folders` settles where the run is kept, `housekeeping` frees what dead jobs left.
`node_place` says which of the job's nodes this is, and how a rank tells its sidecar.
"""
