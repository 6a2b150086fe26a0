"""What can be seen of a job on this node from outside, for `watch`, `launch` and `attach`.

`discovery` finds the job's processes, ranks, launchers and pages. `watched_rank` and `progress`
know one rank. `run_record` saves the run, and notes for `attach`.
"""
