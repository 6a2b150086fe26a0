"""What can be seen of a job on this node from outside, shared by `watch`, `launch` and `attach`.

Its processes, which of them are ranks or only start them, and their pages (`discovery`); what is
known of one rank (`watched_rank`, `progress`); what is kept of the run, and noted for `attach`
(`run_record`).
"""
